"""``GET status``, ``GET requests``, ``DELETE requests/{id}`` and ``POST drain``."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from aiohttp import web

from mlxceld import __version__
from mlxceld.admin.body import read_body
from mlxceld.admin.context import CONTEXT, AdminContext
from mlxceld.admin.errors import AdminError
from mlxceld.admin.mutation import Change, mutation
from mlxceld.admin.schemas import NoFields
from mlxceld.telemetry.status import EngineState, EngineStatus

_CACHE_SUMMARY = (
    "enabled",
    "entries",
    "bytes",
    "capacity_bytes",
    "hits",
    "lookups",
    "hit_rate",
    "snapshot_enabled",
    "snapshot_entries",
    "snapshot_bytes",
    "snapshot_capacity_bytes",
    "prompt_tokens",
    "prompt_tokens_computed",
    "prompt_tokens_reused",
    "completion_tokens",
    "cache_bytes_total",
)


async def get_status(request: web.Request) -> web.Response:
    """The daemon in one object."""
    context = request.app[CONTEXT]
    return web.json_response(describe(context, context.engine.status))


def describe(context: AdminContext, snapshot: EngineStatus) -> dict[str, Any]:
    """The body of ``GET status``: sizes in bytes, times in seconds."""
    settings = context.resolved.settings
    now = context.monotonic()
    ready = snapshot.state is EngineState.READY and not snapshot.fault
    serving = snapshot.state in (EngineState.READY, EngineState.DRAINING)
    stats = snapshot.cache
    lanes = context.lanes()
    host, port = context.address()
    return {
        "version": __version__,
        "pid": os.getpid(),
        "state": snapshot.state.value,
        "detail": snapshot.detail,
        "ready": ready,
        "idle": serving and not snapshot.running and not snapshot.waiting,
        "started_at_unix": context.started_unix,
        "uptime_seconds": now - context.started_monotonic,
        "host": host,
        "port": port,
        "model": None if snapshot.model is None else _plain(asdict(snapshot.model)),
        "waiting": snapshot.waiting,
        "running": snapshot.running,
        "max_queue": settings.max_queue,
        "max_batch_size": settings.max_batch_size,
        "busy": snapshot.busy,
        # The engine's heartbeat is on the same monotonic clock; before its first it is 0.
        "heartbeat_age_seconds": max(0.0, now - snapshot.heartbeat) if snapshot.heartbeat else None,
        "steps": snapshot.steps,
        "tokens_generated": snapshot.tokens_generated,
        "preemptions": snapshot.preemptions,
        "queue_rejections": snapshot.queue_rejections,
        "faults": snapshot.faults,
        "fault": snapshot.fault,
        "preparing": {**asdict(lanes), "full": list(lanes.full), "detail": lanes.detail},
        "longest_chunk_seconds": snapshot.longest_chunk_seconds,
        "longest_decode_step_seconds": snapshot.longest_decode_step_seconds,
        "memory": asdict(snapshot.memory),
        "cache": {name: getattr(stats, name) for name in _CACHE_SUMMARY},
        "trace_enabled": snapshot.trace_enabled,
    }


async def get_requests(request: web.Request) -> web.Response:
    """What is in flight, the oldest first."""
    snapshot = request.app[CONTEXT].engine.status
    listed = sorted(snapshot.requests, key=lambda r: r.seq_id)
    return web.json_response({"requests": [asdict(item) for item in listed]})


@mutation("request.cancel", "requests")
async def delete_request(request: web.Request, change: Change) -> web.Response:
    """Stop a request within one step."""
    context = request.app[CONTEXT]
    request_id = request.match_info["id"]
    change.target = f"requests/{request_id}"
    if not context.engine.cancel(request_id):
        raise AdminError(404, f"no request {request_id!r} is in flight", id=request_id)
    change.after = "cancelled"
    return web.json_response({"id": request_id, "cancelled": True})


@mutation("drain", "daemon")
async def post_drain(request: web.Request, change: Change) -> web.Response:
    """Take no more requests; those accepted run on."""
    context = request.app[CONTEXT]
    await read_body(request, NoFields)
    snapshot = context.engine.status
    change.before = snapshot.state.value
    context.drain()
    change.after = EngineState.DRAINING.value
    return web.json_response(
        {"draining": True, "running": snapshot.running, "waiting": snapshot.waiting}
    )


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """A model's status as JSON: its mappings may be of any Mapping type."""
    return {
        **values,
        "layer_caches": dict(values["layer_caches"]),
        "template_steps": dict(values["template_steps"]),
    }
