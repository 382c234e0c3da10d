"""``GET config``: the settings in force, each with where it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiohttp import web

from mlxceld.admin.context import CONTEXT
from mlxceld.config import value_of


async def get_config(request: web.Request) -> web.Response:
    """Every setting by name; no setting's value is a secret, only paths to secrets are."""
    resolved = request.app[CONTEXT].resolved
    return web.json_response(
        {
            "config_file": _plain(resolved.config_file),
            "settings": {
                name: {"value": _plain(value_of(resolved.settings, name)), "source": source.value}
                for name, source in resolved.sources.items()
            },
            "notes": list(resolved.notes),
            "warnings": list(resolved.warnings),
        }
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
