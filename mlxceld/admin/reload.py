"""``POST config/reload``: the settings file, keys and tokens read again."""

from __future__ import annotations

from dataclasses import asdict

from aiohttp import web

from mlxceld.admin.actor import actor_of
from mlxceld.admin.body import read_body
from mlxceld.admin.context import CONTEXT
from mlxceld.admin.errors import AdminError
from mlxceld.admin.mutation import Change, mutation
from mlxceld.admin.reports import ReloadError
from mlxceld.admin.schemas import NoFields


@mutation("config.reload", "daemon")
async def post_reload(request: web.Request, change: Change) -> web.Response:
    """Apply what may change in a running daemon and name what may not."""
    context = request.app[CONTEXT]
    await read_body(request, NoFields)
    if context.reload is None:
        raise AdminError(501, "this daemon has nothing to reload")
    try:
        report = await context.reload(actor_of(request))
    except ReloadError as error:
        raise AdminError(422, str(error), code="invalid_config", problems=error.problems) from None
    change.before = {name: step["before"] for name, step in report.applied.items()}
    change.after = {name: step["after"] for name, step in report.applied.items()}
    return web.json_response(asdict(report))
