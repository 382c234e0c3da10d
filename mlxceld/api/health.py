"""``/livez``, ``/readyz`` and ``/health``."""

from __future__ import annotations

from aiohttp import web

from mlxceld import __version__
from mlxceld.api.context import CONTEXT, unready_reason


async def get_livez(request: web.Request) -> web.Response:
    """503 only when the engine has work and has not moved for very long: restart it then."""
    context = request.app[CONTEXT]
    snapshot = context.engine.status
    age = context.clock() - snapshot.heartbeat
    if snapshot.busy and age > context.stall_limit:
        reason = f"the engine has work and has not moved for {age:.0f} s"
        return web.json_response({"status": "stalled", "reason": reason}, status=503)
    return web.json_response({"status": "alive"})


async def get_readyz(request: web.Request) -> web.Response:
    """200 when requests are answered, 503 says why they are not.

    ``detail`` says what some requests have to wait for, or what was cut off lately.
    """
    context = request.app[CONTEXT]
    reason = unready_reason(context.engine.status)
    if reason is None:
        detail = context.lanes.report().detail
        told = {} if detail is None else {"detail": detail}
        return web.json_response({"status": "ready", **told})
    return web.json_response({"status": "not_ready", "reason": reason}, status=503)


async def get_health(request: web.Request) -> web.Response:
    """The daemon in a few values, with the status code of ``/readyz``."""
    context = request.app[CONTEXT]
    snapshot = context.engine.status
    reason = unready_reason(snapshot)
    body = {
        "status": "ok" if reason is None else "not_ready",
        "reason": reason,
        "state": snapshot.state.value,
        "version": __version__,
        "model": None if snapshot.model is None else snapshot.model.id,
        "running": snapshot.running,
        "waiting": snapshot.waiting,
        "max_queue": context.settings.max_queue,
    }
    return web.json_response(body, status=200 if reason is None else 503)
