"""``GET /metrics``."""

from __future__ import annotations

from aiohttp import web

from mlxceld.api.context import CONTEXT


async def get_metrics(request: web.Request) -> web.Response:
    """Prometheus' exposition, in the format that the Accept header asks for."""
    body, content_type = request.app[CONTEXT].metrics_text(request.headers.get("Accept", ""))
    return web.Response(body=body, headers={"Content-Type": content_type})
