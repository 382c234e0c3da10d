"""What all changes have in common: JSON only, and one line in the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from aiohttp import web

from mlxceld.admin.actor import actor_of
from mlxceld.admin.context import CONTEXT, REQUEST_ID, AdminContext
from mlxceld.admin.errors import AdminError, code_of
from mlxceld.engine.errors import NotReadyError

T = TypeVar("T")


@dataclass(slots=True)
class Change:
    """What a handler tells the audit log about its change: plain values."""

    target: str
    before: object = None
    after: object = None
    dry_run: bool = False


Handler = Callable[[web.Request], Awaitable[web.Response]]
MutationHandler = Callable[[web.Request, Change], Awaitable[web.Response]]


def mutation(action: str, target: str) -> Callable[[MutationHandler], Handler]:
    """Mark a handler as a change, called ``action`` in the audit log.

    The handler is wrapped so that a body in anything but JSON is refused (a web page can send a
    form anywhere, and JSON nowhere without asking), and so that every attempt is on record.
    """

    def wrap(handler: MutationHandler) -> Handler:
        async def run(request: web.Request) -> web.Response:
            context = request.app[CONTEXT]
            change = Change(target)
            began = context.monotonic()
            outcome = "ok"
            try:
                require_json(request)
                response = await handler(request, change)
                outcome = "dry_run" if change.dry_run else "ok"
            except AdminError as error:
                outcome = error.code
                raise
            except web.HTTPException as error:
                outcome = code_of(error.status)
                raise
            except asyncio.CancelledError:
                outcome = "client_gone"
                raise
            except Exception:
                outcome = "internal_error"
                raise
            else:
                return response
            finally:
                context.audit.record(
                    actor_of(request),
                    action,
                    change.target,
                    change.before,
                    change.after,
                    outcome,
                    request[REQUEST_ID],
                    context.monotonic() - began,
                )

        return run

    return wrap


async def ask_engine(context: AdminContext, order: Callable[[], Future[T]]) -> T:
    """Give the engine an order and wait for it to be carried out between two steps.

    Raises AdminError 503 when there is no engine to do it, and 504 when it does not get to it in
    time; then the order is withdrawn if it has not begun.
    """
    try:
        future = order()
    except NotReadyError as error:
        raise AdminError(503, str(error)) from error
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), context.command_timeout)
    except NotReadyError as error:
        raise AdminError(503, str(error)) from error
    except TimeoutError:
        state = context.engine.status.state.value
        fate = "nothing was changed" if future.cancel() else "it may still be carried out"
        raise AdminError(
            504,
            f"the engine ({state}) did not get to this in {context.command_timeout:g} s; {fate}",
            engine_state=state,
        ) from None


def require_json(request: web.Request) -> None:
    """Refuse a body in anything but JSON; raises AdminError 415."""
    kind = request.content_type
    if request.method == "DELETE" and not request.body_exists:
        return
    if kind != "application/json":
        given = request.headers.get("Content-Type")
        shown = "no Content-Type" if given is None else f"Content-Type {given!r}"
        raise AdminError(415, f"{shown} was sent, expected Content-Type 'application/json'")
