"""The time of the request at hand, which runs from its arrival, whatever it waits for."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from mlxceld.api.errors import timed_out

if TYPE_CHECKING:
    from mlxceld.api.context import ApiContext

T = TypeVar("T")

_ARRIVED: ContextVar[float | None] = ContextVar("arrived", default=None)
"""Of the context's clock. A connection's requests come one after another in one task."""


def note_arrival(context: ApiContext) -> None:
    """The head of a request has come."""
    _ARRIVED.set(context.clock())


def seconds_left(context: ApiContext) -> float | None:
    """What ``request_timeout`` leaves of the request's time, None without a limit.

    Raises the ApiError of a timeout where nothing is left.
    """
    limit = context.settings.request_timeout
    if not limit:
        return None
    arrived = _ARRIVED.get()
    left = limit if arrived is None else limit - (context.clock() - arrived)
    if left <= 0:
        raise timed_out(limit)
    return left


async def within_time(context: ApiContext, work: Callable[[], T], *, size: int = 0) -> T:
    """Do ``work`` on ``size`` bytes of text beside the event loop, in what time the request has.

    Raises the ApiError of a timeout, and what ``work`` raises.
    """
    seconds = seconds_left(context)
    try:
        return await context.lanes.run(work, size=size, seconds=seconds)
    except TimeoutError:
        raise timed_out(context.settings.request_timeout) from None
