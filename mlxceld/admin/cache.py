"""``GET cache/stats``, ``PATCH cache/budget`` and ``POST cache/flush``."""

from __future__ import annotations

from dataclasses import asdict, fields

from aiohttp import web

from mlxceld.admin.body import read_body
from mlxceld.admin.context import CONTEXT
from mlxceld.admin.errors import AdminError
from mlxceld.admin.mutation import Change, ask_engine, mutation
from mlxceld.admin.newest_rejects import newest_rejects
from mlxceld.admin.schemas import BudgetPatch, FlushOrder
from mlxceld.prompt_cache.key import session_hash
from mlxceld.prompt_cache.reports import BudgetChange, GenerationConflictError

BUDGET_FIELDS = tuple(field.name for field in fields(BudgetChange))


async def get_stats(request: web.Request) -> web.Response:
    """Every cache number, flat, as on the public route; then the newest refusal of each reason."""
    snapshot = request.app[CONTEXT].engine.status
    return web.json_response({**snapshot.cache.as_dict(), **newest_rejects(snapshot)})


@mutation("cache.resize", "cache/budget")
async def patch_budget(request: web.Request, change: Change) -> web.Response:
    """Change the live limits until the daemon restarts."""
    context = request.app[CONTEXT]
    body = await read_body(request, BudgetPatch)
    changes = BudgetChange(**{name: getattr(body, name) for name in BUDGET_FIELDS})
    change.dry_run = bool(body.dry_run)
    if changes == BudgetChange():
        raise AdminError(400, "nothing to change: give at least one of " + ", ".join(BUDGET_FIELDS))
    caches = context.engine.cache
    try:
        report = await ask_engine(
            context,
            lambda: caches.resize(changes, dry_run=change.dry_run, generation=body.generation),
        )
    except GenerationConflictError as error:
        raise AdminError(409, str(error), field="generation", generation=error.current) from None
    change.before, change.after = asdict(report.before), asdict(report.after)
    return web.json_response({**asdict(report), "persistent": False})


@mutation("cache.flush", "cache")
async def post_flush(request: web.Request, change: Change) -> web.Response:
    """Drop entries; what running requests still use is freed when they end."""
    context = request.app[CONTEXT]
    body = await read_body(request, FlushOrder)
    store, session = body.store or "all", body.session
    change.dry_run = bool(body.dry_run)
    change.target = f"cache/{store}"
    if session is not None:
        # Given as a hash already, it is shown hashed once more: the audit log holds no raw key.
        change.target += f"/session:{session_hash(session)}"
    caches = context.engine.cache
    report = await ask_engine(
        context,
        lambda: caches.flush(store=store, session=session, dry_run=change.dry_run),
    )
    change.after = asdict(report)
    return web.json_response({**asdict(report), "store": store})
