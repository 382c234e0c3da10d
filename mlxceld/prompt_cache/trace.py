"""The cache's diary: a ring of the last events, and a log line each when switched on."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from mlxceld.prompt_cache.key import session_hash
from mlxceld.prompt_cache.reports import TraceEvent

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
    """Keeps the last events and, while ``enabled``, logs one INFO line each.

    ``now_ms`` gives the wall clock in milliseconds. ``emit`` belongs to the engine thread;
    ``tail`` may be called from any thread.
    """

    def __init__(
        self,
        now_ms: Callable[[], int],
        *,
        enabled: bool = False,
        logger: logging.Logger | None = None,
    ) -> None:
        self.enabled = enabled
        self._now_ms = now_ms
        self._log = logger or logging.getLogger("mlxceld.apc")
        self._ring: deque[TraceEvent] = deque(maxlen=RING_EVENTS)

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
            self._log.info("%s", entry.line())

    def tail(self, n: int) -> list[TraceEvent]:
        """The last ``n`` events, oldest first; none for an ``n`` below 1."""
        # deque.copy runs without releasing the interpreter lock, unlike iterating the live ring.
        return list(self._ring.copy())[-n:] if n > 0 else []
