"""What one reader of the live trace has still to take: bounded, so that it slows nobody."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from mlxceld.prompt_cache.reports import TraceEvent

FEED_EVENTS = 1024
"""How many events wait for a reader; what comes while so many do is lost to it, and counted."""


@dataclass(frozen=True, slots=True)
class Switched:
    """The trace was turned on or off."""

    enabled: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """So many events did not fit and are missing at this place."""

    count: int


Item = TraceEvent | Switched | Lost


class TraceFeed:
    """Events on their way to one reader, in order, with a mark where some are missing.

    ``wake`` is called, on the pushing thread, when an empty feed is not empty any more. The lock
    is held for a few instructions only.
    """

    def __init__(
        self,
        wake: Callable[[], None],
        on_close: Callable[[TraceFeed], None],
        *,
        limit: int = FEED_EVENTS,
    ) -> None:
        self._wake = wake
        self._on_close = on_close
        self._limit = limit
        self._lock = threading.Lock()
        self._items: deque[Item] = deque()
        self._lost = 0

    def push(self, item: TraceEvent | Switched) -> bool:
        """Add an item; False if there is no room for it."""
        with self._lock:
            first = not self._items
            if kept := len(self._items) < self._limit:
                self._items.append(item)
            else:
                self._lost += isinstance(item, TraceEvent)
        if first:
            self._wake()
        return kept

    def take(self) -> list[Item]:
        """All that waits, oldest first; the gap, if there is one, is its end."""
        with self._lock:
            items, lost = list(self._items), self._lost
            self._items.clear()
            self._lost = 0
        return [*items, Lost(lost)] if lost else items

    def close(self) -> None:
        """Get no more."""
        self._on_close(self)
