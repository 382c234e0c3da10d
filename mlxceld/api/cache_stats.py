"""``GET /v1/cache/stats``."""

from __future__ import annotations

from aiohttp import web

from mlxceld.api.context import CONTEXT


async def get_cache_stats(request: web.Request) -> web.Response:
    """Every cache counter, flat and complete also while the stores are off."""
    return web.json_response(request.app[CONTEXT].engine.status.cache.as_dict())
