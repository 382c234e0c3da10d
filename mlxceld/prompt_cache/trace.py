"""The cache's diary: a ring of the last events, and a log line each when switched on."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from mlxceld.prompt_cache.key import session_hash
from mlxceld.prompt_cache.reports import TraceEvent
from mlxceld.prompt_cache.trace_feed import Switched, TraceFeed

RING_EVENTS = 256
"""How many events are kept, whether the trace is on or off."""


class EventSink(Protocol):
    """Where a store reports what happened; :meth:`Trace.emit` is one."""

    def __call__(
        self,
        event: str,
        *,
        session: str | None = None,
        seq_id: int | None = None,
        matched_len: int | None = None,
        context_len: int | None = None,
        reason: str | None = None,
        nbytes: int | None = None,
        store: str | None = None,
    ) -> None:
        """Take one event; ``session`` is the raw key."""


class Trace:
    """Keeps the last events and, while ``enabled``, logs one INFO line each and feeds its readers.

    ``now_ms`` gives the wall clock in milliseconds. ``emit`` belongs to the engine thread; all
    else may be called from any thread. While the trace is off an event costs its place in the
    ring and one look at ``enabled``.
    """

    def __init__(
        self,
        now_ms: Callable[[], int],
        *,
        enabled: bool = False,
        logger: logging.Logger | None = None,
    ) -> None:
        self.enabled = enabled
        self.dropped = 0
        """Events that readers were too slow for, over all of them."""
        self._now_ms = now_ms
        self._log = logger or logging.getLogger("mlxceld.apc")
        self._ring: deque[TraceEvent] = deque(maxlen=RING_EVENTS)
        self._lock = threading.Lock()
        self._feeds: tuple[TraceFeed, ...] = ()

    def emit(
        self,
        event: str,
        *,
        session: str | None = None,
        seq_id: int | None = None,
        matched_len: int | None = None,
        context_len: int | None = None,
        reason: str | None = None,
        nbytes: int | None = None,
        store: str | None = None,
    ) -> None:
        """Record one event; ``session`` is the raw key and is kept only as its hash."""
        entry = TraceEvent(
            at_unix_ms=self._now_ms(),
            event=event,
            seq_id=seq_id,
            session=None if session is None else session_hash(session),
            matched_len=matched_len,
            context_len=context_len,
            reason=reason,
            bytes=nbytes,
            store=store,
        )
        self._ring.append(entry)
        if self.enabled:
            self._tell(entry)

    def _tell(self, entry: TraceEvent) -> None:
        self._log.info("%s", entry.line())
        for feed in self._feeds:
            self.dropped += not feed.push(entry)

    def switch(self, enabled: bool) -> None:
        """Turn lines and feeds on or off; readers are told."""
        self.enabled = enabled
        for feed in self._feeds:
            feed.push(Switched(enabled))

    def follow(self, wake: Callable[[], None]) -> TraceFeed:
        """A feed of the events from now on; its reader closes it.

        ``wake`` is called on the engine thread when there is something to take; it must not block.
        """
        feed = TraceFeed(wake, self._unfollow)
        with self._lock:
            self._feeds = (*self._feeds, feed)
        return feed

    def tail(self, n: int) -> list[TraceEvent]:
        """The last ``n`` events, oldest first; none for an ``n`` below 1."""
        # deque.copy runs without releasing the interpreter lock, unlike iterating the live ring.
        return list(self._ring.copy())[-n:] if n > 0 else []

    def _unfollow(self, feed: TraceFeed) -> None:
        with self._lock:
            self._feeds = tuple(each for each in self._feeds if each is not feed)
