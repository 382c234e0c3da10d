"""The bridge that carries a request's events from the engine thread to its caller's event loop."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Self

from mlxceld.engine.events import Event, Failed, Finished

_LAST = (Finished, Failed)


class Wakeup:
    """Wakes the one task that waits for events; for one event loop's own thread.

    Rung while nobody waits it does nothing: who waits has looked for events before.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Until it is rung."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def ring(self) -> None:
        """Wake who waits, if anybody does."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class EventStream:
    """An asynchronous iterator over the events of one request.

    Made on the caller's event loop; the engine fills it from its own thread through
    :func:`deliver`. It ends after a :class:`Finished` or :class:`Failed`.
    """

    def __init__(self, request_id: str, cancel: Callable[[str], bool]) -> None:
        self.request_id = request_id
        self.loop = asyncio.get_running_loop()
        self._cancel = cancel
        self._events: deque[Event] = deque()
        self._bell = Wakeup()
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._over:
                raise StopAsyncIteration
            await self._bell.wait()
        event = self._events.popleft()
        if isinstance(event, _LAST):
            self._over = True
        return event

    def drain(self) -> list[Event]:
        """Take every event that has arrived, without waiting."""
        events = list(self._events)
        self._events.clear()
        if events and isinstance(events[-1], _LAST):
            self._over = True
        return events

    def share(self, bell: Wakeup) -> None:
        """Ring ``bell`` for what arrives from now on, which several streams may have in common."""
        self._bell = bell

    @property
    def over(self) -> bool:
        """Whether the last event has been taken."""
        return self._over

    def cancel(self) -> bool:
        """Ask the engine to stop this request; False if it had ended."""
        return not self._over and self._cancel(self.request_id)

    def push(self, event: Event) -> None:
        """Add an event; on the stream's own loop only."""
        self._events.append(event)
        self._bell.ring()


def deliver(batch: Iterable[tuple[EventStream, Event]]) -> None:
    """Hand a step's events over, with one wake-up a loop however many events there are."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[EventStream, Event]]] = defaultdict(list)
    for item in batch:
        by_loop[item[0].loop].append(item)
    for loop, items in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_push_all, items)


def _push_all(items: list[tuple[EventStream, Event]]) -> None:
    for stream, event in items:
        stream.push(event)
