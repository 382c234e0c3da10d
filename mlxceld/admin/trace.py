"""``GET trace`` and ``PUT trace``."""

from __future__ import annotations

from dataclasses import asdict

from aiohttp import web

from mlxceld.admin.body import read_body
from mlxceld.admin.context import CONTEXT
from mlxceld.admin.mutation import Change, mutation
from mlxceld.admin.query import Query
from mlxceld.admin.schemas import TraceSwitch
from mlxceld.prompt_cache.trace import RING_EVENTS


async def get_trace(request: web.Request) -> web.Response:
    """Whether the trace is logged, and the last ``n`` events (20), oldest first."""
    engine = request.app[CONTEXT].engine
    count = tail_length(request, default=20)
    return web.json_response(
        {
            "enabled": engine.status.trace_enabled,
            "events": [asdict(event) for event in engine.cache.trace_tail(count)],
        }
    )


def tail_length(request: web.Request, *, default: int) -> int:
    """How many of the last events a query asks for; raises AdminError."""
    number = Query(request, ("n",)).integer("n", 0, RING_EVENTS)
    return default if number is None else number


@mutation("trace.set", "trace")
async def put_trace(request: web.Request, change: Change) -> web.Response:
    """Switch the trace's log lines; the last events are kept either way."""
    engine = request.app[CONTEXT].engine
    enabled = (await read_body(request, TraceSwitch)).enabled
    change.before, change.after = engine.status.trace_enabled, enabled
    engine.cache.set_trace(enabled)
    return web.json_response({"enabled": enabled})
