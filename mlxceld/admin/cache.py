"""``GET cache/stats``, ``PATCH cache/budget`` and ``POST cache/flush``."""

from __future__ import annotations

from dataclasses import asdict, fields

from aiohttp import web

from mlxceld.admin.body import read_body
from mlxceld.admin.context import CONTEXT
from mlxceld.admin.errors import AdminError
from mlxceld.admin.mutation import Change, ask_engine, mutation
from mlxceld.admin.newest_rejects import newest_rejects
from mlxceld.prompt_cache.key import session_hash
from mlxceld.prompt_cache.reports import BudgetChange

STORES = ("all", "kv", "snapshots")
BUDGET_FIELDS = tuple(field.name for field in fields(BudgetChange))


async def get_stats(request: web.Request) -> web.Response:
    """Every cache number, flat, as on the public route; then the newest refusal of each reason."""
    snapshot = request.app[CONTEXT].engine.snapshot
    return web.json_response({**snapshot.cache.as_dict(), **newest_rejects(snapshot)})


@mutation("cache.resize", "cache/budget")
async def patch_budget(request: web.Request, change: Change) -> web.Response:
    """Change the live limits until the daemon restarts."""
    context = request.app[CONTEXT]
    body = await read_body(request, (*BUDGET_FIELDS, "dry_run"))
    changes = BudgetChange(
        capacity_bytes=body.integer("capacity_bytes"),
        max_entries=body.integer("max_entries"),
        ttl_seconds=body.seconds("ttl_seconds"),
        snapshot_capacity_bytes=body.integer("snapshot_capacity_bytes"),
        snapshot_max_entries=body.integer("snapshot_max_entries"),
        snapshot_ttl_seconds=body.seconds("snapshot_ttl_seconds"),
    )
    change.dry_run = body.boolean("dry_run") or False
    if changes == BudgetChange():
        raise AdminError(400, "nothing to change: give at least one of " + ", ".join(BUDGET_FIELDS))
    engine = context.engine
    report = await ask_engine(context, lambda: engine.resize(changes, dry_run=change.dry_run))
    change.before, change.after = asdict(report.before), asdict(report.after)
    return web.json_response({**asdict(report), "persistent": False})


@mutation("cache.flush", "cache")
async def post_flush(request: web.Request, change: Change) -> web.Response:
    """Drop entries; what running requests still use is freed when they end."""
    context = request.app[CONTEXT]
    body = await read_body(request, ("store", "session", "dry_run"))
    store = body.choice("store", STORES) or "all"
    session = body.text("session")
    change.dry_run = body.boolean("dry_run") or False
    change.target = f"cache/{store}"
    if session is not None:
        # Given as a hash already, it is shown hashed once more: the audit log holds no raw key.
        change.target += f"/session:{session_hash(session)}"
    engine = context.engine
    report = await ask_engine(
        context,
        lambda: engine.flush(store=store, session=session, dry_run=change.dry_run),
    )
    change.after = asdict(report)
    return web.json_response({**asdict(report), "store": store})
