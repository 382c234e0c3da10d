"""``GET config``: the settings in force, each with where it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiohttp import web

from mlxceld.admin.context import CONTEXT
from mlxceld.config import value_of
from mlxceld.telemetry.cache_stats import CacheStats


async def get_config(request: web.Request) -> web.Response:
    """Every setting by name; no setting's value is a secret, only paths to secrets are."""
    context = request.app[CONTEXT]
    resolved = context.resolved
    return web.json_response(
        {
            "config_file": _plain(resolved.config_file),
            "settings": {
                name: {"value": _plain(value_of(resolved.settings, name)), "source": source.value}
                for name, source in resolved.sources.items()
            },
            "notes": list(resolved.notes),
            "warnings": list(resolved.warnings),
            "derived": _derived(context.engine.status.cache),
        }
    )


def _derived(stats: CacheStats) -> dict[str, dict[str, Any]]:
    """The limits in force that depend on the model, each with how it came about."""
    found = {
        "prompt_cache.capacity_bytes": (stats.capacity_bytes, stats.capacity_derivation),
        "prompt_cache.snapshot_capacity_bytes": (
            stats.snapshot_capacity_bytes,
            stats.snapshot_capacity_derivation,
        ),
    }
    return {
        name: {"value": value, "derivation": why} for name, (value, why) in found.items() if why
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
