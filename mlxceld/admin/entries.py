"""``GET cache/entries``: what is stored, one object an entry, never its text."""

from __future__ import annotations

from dataclasses import asdict

from aiohttp import web

from mlxceld.admin.context import CONTEXT
from mlxceld.admin.mutation import ask_engine
from mlxceld.admin.query import Query

STORES = ("all", "kv", "snapshots")

DEFAULT_LIMIT = 100
LARGEST_LIMIT = 10_000


async def get_entries(request: web.Request) -> web.Response:
    """The entries of the stores, the most recently used first."""
    context = request.app[CONTEXT]
    query = Query(request, ("store", "session", "limit"))
    store = query.choice("store", STORES) or "all"
    session = query.text("session")
    limit = query.integer("limit", 1, LARGEST_LIMIT)
    wanted = DEFAULT_LIMIT if limit is None else limit
    found = await ask_engine(
        context, lambda: context.engine.cache.entries(store=store, session=session, limit=wanted)
    )
    return web.json_response(
        {"entries": [asdict(entry) for entry in found.entries], "total": found.total}
    )
