"""The admin application: its routes, and what they are given to work with."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import web

from mlxceld.admin import (
    cache,
    config,
    entries,
    explain,
    openapi,
    status,
    trace,
    trace_stream,
    warm,
)
from mlxceld.admin import reload as reloading
from mlxceld.admin.access import ACCESS, TcpAccess, tcp_access
from mlxceld.admin.body import BODY_LIMIT
from mlxceld.admin.context import CONTEXT, AdminContext
from mlxceld.admin.middleware import errors, request_ids
from mlxceld.admin.reports import ReloadReport
from mlxceld.config import ResolvedSettings
from mlxceld.telemetry.audit import AuditLog
from mlxceld.web.lanes import LaneReport

if TYPE_CHECKING:
    from mlxceld.api.prompts import Prompts
    from mlxceld.engine.client import EngineClient

PREFIX = "/admin/v1"


def create_admin_app(
    engine: EngineClient,
    prompts: Prompts,
    resolved: ResolvedSettings,
    *,
    drain: Callable[[], None],
    address: Callable[[], tuple[str, int]] | None = None,
    audit: AuditLog | None = None,
    access: TcpAccess | None = None,
    reload: Callable[[str], Awaitable[ReloadReport]] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
    command_timeout: float = 30.0,
    lanes: Callable[[], LaneReport] = LaneReport,
) -> web.Application:
    """The admin API over an engine, to be served on a listener of its own.

    ``prompts`` reads the bodies of requests that are warmed or explained (see
    :func:`mlxceld.api.app.prompts_of`).
    ``drain`` is called on the event loop and must not block: the daemon takes no more requests
    and finishes those it has. ``address`` tells the public API's host and port where they are not
    the settings' (a port of 0 becomes a free one). On a Unix socket the listener sees to it that
    only its owner calls; ``access`` is what a connection over TCP is asked for, and has to be
    given where there is such a listener. ``reload`` reads the settings again. Uptime counts from
    this call.
    ``command_timeout`` is how long a change waits for the engine, in seconds; ``lanes``
    tells how the threads do that prepare requests.
    """
    app = web.Application(client_max_size=BODY_LIMIT, middlewares=[request_ids, errors, tcp_access])
    if access is not None:
        app[ACCESS] = access
    app.on_cleanup.append(_end_background)
    app[CONTEXT] = AdminContext(
        engine=engine,
        prompts=prompts,
        resolved=resolved,
        audit=audit or AuditLog(),
        drain=drain,
        address=address or (lambda: (resolved.settings.host, resolved.settings.port)),
        monotonic=monotonic,
        started_monotonic=monotonic(),
        started_unix=wall(),
        command_timeout=command_timeout,
        lanes=lanes,
        reload=reload,
    )
    app.add_routes(
        [
            web.get(f"{PREFIX}/status", status.get_status),
            web.get(f"{PREFIX}/requests", status.get_requests),
            web.delete(f"{PREFIX}/requests/{{id}}", status.delete_request),
            web.post(f"{PREFIX}/drain", status.post_drain),
            web.get(f"{PREFIX}/cache/stats", cache.get_stats),
            web.get(f"{PREFIX}/cache/entries", entries.get_entries),
            web.patch(f"{PREFIX}/cache/budget", cache.patch_budget),
            web.post(f"{PREFIX}/cache/flush", cache.post_flush),
            web.post(f"{PREFIX}/cache/warm", warm.post_warm),
            web.delete(f"{PREFIX}/cache/pins/{{digest}}", warm.delete_pin),
            web.post(f"{PREFIX}/cache/verify", warm.post_verify),
            web.get(f"{PREFIX}/trace", trace.get_trace),
            web.put(f"{PREFIX}/trace", trace.put_trace),
            web.get(f"{PREFIX}/config", config.get_config),
            web.post(f"{PREFIX}/config/reload", reloading.post_reload),
            web.get(openapi.PATH, openapi.handler(PREFIX)),
        ]
    )
    trace_stream.register(app, PREFIX)
    explain.register(app, PREFIX)
    return app


async def _end_background(app: web.Application) -> None:
    for task in list(app[CONTEXT].background):
        task.cancel()
