"""``GET config``: the settings in force, each with where it came from."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

from aiohttp import web

from mlxceld.admin.context import CONTEXT


async def get_config(request: web.Request) -> web.Response:
    """Every setting by name; no setting's value is a secret, only paths to secrets are."""
    resolved = request.app[CONTEXT].resolved
    return web.json_response(
        {
            "settings": {
                name: {"value": _plain(_value(resolved.settings, name)), "source": str(source)}
                for name, source in resolved.sources.items()
            },
            "notes": list(resolved.notes),
        }
    )


def _value(settings: object, name: str) -> Any:
    """The value of a dotted name in the tree of settings."""
    return reduce(getattr, name.split("."), settings)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
