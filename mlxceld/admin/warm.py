"""``POST cache/warm``, ``DELETE cache/pins/{digest}`` and ``POST cache/verify``."""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import asdict

from aiohttp import web

from mlxceld.admin.body import WARM_LIMIT, read_body
from mlxceld.admin.context import CONTEXT, AdminContext
from mlxceld.admin.errors import AdminError
from mlxceld.admin.mutation import Change, ask_engine, mutation
from mlxceld.admin.prompt_body import read_prompt
from mlxceld.admin.schemas import NoFields, WarmOrder
from mlxceld.engine.errors import EngineError, InvalidRequestError, NotReadyError, QueueFullError
from mlxceld.engine.request import GenerationRequest
from mlxceld.engine.warming import Warmed, WarmError, warm, warm_request
from mlxceld.prompt_cache.key import session_hash
from mlxceld.prompt_cache.reports import PinError

log = logging.getLogger(__name__)


@mutation("cache.warm", "cache")
async def post_warm(request: web.Request, change: Change) -> web.Response:
    """Prefill a prompt and keep what was computed; with ``wait`` off answer at once."""
    context = request.app[CONTEXT]
    order = await read_body(request.clone(client_max_size=WARM_LIMIT), WarmOrder)
    if order.session is not None:
        change.target = f"cache/session:{session_hash(order.session)}"
    prompt = await read_prompt(context, order, keep=True)
    wanted = warm_request(
        f"warm-{uuid.uuid4().hex}",
        prompt.tokens,
        session=prompt.session,
        template_signature=prompt.signature,
        boundaries=prompt.boundaries,
    )
    warming = _warm(context, wanted, prompt.kept_tokens, pin=bool(order.pin))
    if order.wait is False:
        task = asyncio.create_task(warming)
        context.background.add(task)
        task.add_done_callback(lambda done: _told(context, wanted, done))
        change.after = {"id": wanted.id, "tokens": prompt.kept_tokens}
        return web.json_response(change.after, status=202)
    done = await warming
    change.after = asdict(done)
    return web.json_response(asdict(done))


@mutation("cache.unpin", "cache/pins")
async def delete_pin(request: web.Request, change: Change) -> web.Response:
    """Leave a pinned entry to its age and use."""
    context = request.app[CONTEXT]
    digest = request.match_info["digest"]
    change.target = f"cache/pins/{digest}"
    report = await ask_engine(context, lambda: context.engine.cache.unpin(digest))
    if report is None:
        raise AdminError(404, f"no pinned entry has the digest {digest!r}", digest=digest)
    change.before, change.after = {"pins": 1}, {"pins": report.pins}
    return web.json_response(asdict(report))


@mutation("cache.verify", "cache")
async def post_verify(request: web.Request, change: Change) -> web.Response:
    """Prove on the loaded model that what is adopted equals what is computed."""
    context = request.app[CONTEXT]
    await read_body(request, NoFields)
    report = await ask_engine(context, context.engine.cache.verify)
    change.after = {"passed": report.passed}
    told = {"passed": report.passed, "reason": report.reason, **asdict(report)}
    return web.json_response(told)


async def _warm(
    context: AdminContext, wanted: GenerationRequest, kept_tokens: int, *, pin: bool
) -> Warmed:
    try:
        return await warm(context.engine, wanted, kept_tokens=kept_tokens, pin=pin)
    except NotReadyError as error:
        raise AdminError(503, str(error)) from error
    except QueueFullError as error:
        raise AdminError(
            429, str(error), code="queue_full", retry_after=error.retry_after
        ) from error
    except InvalidRequestError as error:
        raise AdminError(400, str(error), field="prompt") from error
    except (PinError, WarmError) as error:
        raise AdminError(409, str(error)) from error
    except EngineError as error:
        raise AdminError(500, str(error)) from error


def _told(context: AdminContext, wanted: GenerationRequest, done: asyncio.Task[Warmed]) -> None:
    context.background.discard(done)
    if done.cancelled():
        return
    error: BaseException | None = done.exception()
    if error is not None:
        log.warning("%s: %s", wanted.id, error)
