"""Which entries of a store are kept on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from mlxceld.prompt_cache.stored_prefix import StoredPrefix

E = TypeVar("E", bound=StoredPrefix)


class Pins(Generic[E]):
    """Entries that stay whatever their age and use, until they are unpinned or flushed."""

    def __init__(self) -> None:
        self._entries: dict[int, E] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[E]:
        return iter(self._entries.values())

    def pin(self, entry: E) -> None:
        """Keep an entry; one pin is as good as several."""
        entry.pins = 1
        self._entries[id(entry)] = entry

    def unpin(self, digest: str, digest_of: Callable[[E], str]) -> E | None:
        """Leave the entry of that digest to its age; None if no pinned one has it."""
        for entry in self:
            if digest == digest_of(entry):
                entry.pins = 0
                self.drop(entry)
                return entry
        return None

    def add(self, entry: E) -> None:
        """Book a new entry, if it takes over the pins of the one that it replaces."""
        if entry.pins:
            self._entries[id(entry)] = entry

    def drop(self, entry: E) -> None:
        """Forget an entry that leaves, pinned or not."""
        self._entries.pop(id(entry), None)

    def check(self, entries: Iterable[E]) -> None:
        """Raise AssertionError, with the numbers, if these are not pinned as is booked."""
        pinned = {id(entry) for entry in entries if entry.pins}
        assert pinned == self._entries.keys(), f"{len(pinned)} pins, {len(self)} booked"
