"""The public HTTP application."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from mlxceld.api import cache_stats, health, metrics, middleware, openapi, tokenize
from mlxceld.api.anthropic import messages
from mlxceld.api.context import CONTEXT, ApiContext, MetricsText
from mlxceld.api.next_turns import make_next_turns
from mlxceld.api.openai import chat, completions, models
from mlxceld.api.prompts import Prompts
from mlxceld.api.refusals import REFUSALS, Refusals, sweeping
from mlxceld.api.responses import routes as responses
from mlxceld.api.responses import stored
from mlxceld.api.responses.store import ResponseStore
from mlxceld.telemetry.refusals import RefusalCounts
from mlxceld.web.hosts import HostGuard
from mlxceld.web.lanes import Lanes

if TYPE_CHECKING:
    from mlxceld.api.keys import ApiKeys
    from mlxceld.config import Settings
    from mlxceld.engine.client import EngineClient


def create_app(
    engine: EngineClient,
    settings: Settings,
    keys: ApiKeys,
    *,
    metrics_text: MetricsText,
    refusals: RefusalCounts | None = None,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
    ids: Callable[[], str] = lambda: uuid.uuid4().hex,
    keep_alive: float = 5.0,
    stall_limit: float = 300.0,
    lanes: Lanes | None = None,
) -> web.Application:
    """The application, ready for an AppRunner with ``handler_cancellation=True``.

    Only with handler cancellation does a client that leaves end its request. ``clock`` is the
    engine's monotonic clock and ``wall`` Unix time, in seconds. ``keep_alive`` is after how many
    silent seconds a stream sends a comment; ``stall_limit`` from what age of a busy engine's
    heartbeat ``/livez`` fails. ``lanes`` are closed with the application. Refused requests are
    counted in ``refusals``.
    """
    app = web.Application(
        client_max_size=settings.max_body,
        middlewares=[
            middleware.request_ids,
            middleware.errors,
            middleware.browsers,
            middleware.authentication,
        ],
    )
    app[CONTEXT] = ApiContext(
        engine=engine,
        settings=settings,
        keys=keys,
        clock=clock,
        wall=wall,
        ids=ids,
        metrics_text=metrics_text,
        keep_alive=keep_alive,
        stall_limit=stall_limit,
        lanes=lanes or Lanes(),
    )
    engine.foretell_with(partial(make_next_turns, app[CONTEXT]))
    app[stored.STORE] = ResponseStore(settings.responses.capacity_bytes)
    app[middleware.GUARD] = HostGuard(settings.host, settings.allowed_hosts, settings.cors_origins)
    app[REFUSALS] = Refusals(RefusalCounts() if refusals is None else refusals, clock)
    app[openapi.DOCUMENT] = {}
    app.on_response_prepare.append(middleware.add_headers)
    app.cleanup_ctx.extend([_lanes, sweeping])
    app.add_routes(
        [
            web.post("/v1/chat/completions", chat.post_chat_completions),
            web.post("/v1/completions", completions.post_completions),
            web.post("/v1/messages", messages.post_messages),
            web.post("/v1/messages/count_tokens", messages.post_count_tokens),
            web.post("/v1/responses", responses.post_responses),
            web.post("/v1/responses/input_tokens", responses.post_input_tokens),
            web.get(stored.PATH, stored.get_response),
            web.delete(stored.PATH, stored.delete_response),
            web.get(f"{stored.PATH}/input_items", stored.get_input_items),
            web.post(f"{stored.PATH}/cancel", stored.post_cancel),
            web.post("/tokenize", tokenize.post_tokenize),
            web.post("/detokenize", tokenize.post_detokenize),
            web.get("/v1/models", models.get_models),
            web.get("/v1/models/{id:.+}", models.get_model),
            web.get("/v1/cache/stats", cache_stats.get_cache_stats),
            web.get("/metrics", metrics.get_metrics),
            web.get("/livez", health.get_livez),
            web.get("/readyz", health.get_readyz),
            web.get("/health", health.get_health),
            web.get(openapi.PATH, openapi.get_openapi),
        ]
    )
    return app


def prompts_of(app: web.Application) -> Prompts:
    """What reads the application's bodies where they are not to be answered."""
    return Prompts(app[CONTEXT], app[stored.STORE])


async def _lanes(app: web.Application) -> AsyncIterator[None]:
    yield
    app[CONTEXT].lanes.close()
