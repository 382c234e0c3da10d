"""The entries that a store got last, so that an older match is brought up to date by them alone."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

E = TypeVar("E")

_KEPT = 16
"""Beyond so many new entries a look-up costs less than comparing with each of them."""


class Recent(Generic[E]):
    """The last entries with their numbers; ``generation`` counts all that were ever added."""

    def __init__(self) -> None:
        self.generation = 0
        self._entries: deque[tuple[int, E]] = deque()
        self._forgotten = 0

    def add(self, entry: E) -> None:
        """An entry is new in the store."""
        self.generation += 1
        self._entries.append((self.generation, entry))
        if len(self._entries) > _KEPT:
            self._forgotten = self._entries.popleft()[0]

    def drop(self, entry: E) -> None:
        """An entry has left; nothing of it is kept alive here."""
        for pair in self._entries:
            if pair[1] is entry:
                self._entries.remove(pair)
                return

    def since(self, generation: int) -> list[E] | None:
        """The present entries that were added after ``generation``; None if they are not known."""
        if generation < self._forgotten:
            return None
        return [entry for number, entry in self._entries if number > generation]
