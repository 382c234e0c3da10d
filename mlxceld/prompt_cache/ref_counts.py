"""How many entries hold each thing: what several hold counts once, and goes with the last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class RefCounts(Generic[T]):
    """Counts, by block (id or hash), the entries that have it. ``len`` is how many are held."""

    def __init__(self, tables: Iterable[Iterable[T]] = ()) -> None:
        self._counts: Counter[T] = Counter()
        for table in tables:
            self._counts.update(table)

    def __len__(self) -> int:
        return len(self._counts)

    def __contains__(self, block: T) -> bool:
        return block in self._counts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RefCounts) and self._counts == other._counts

    __hash__ = None  # type: ignore[assignment]

    def count(self, block: T) -> int:
        """How many hold this block."""
        return self._counts[block]

    def shared(self, table: Iterable[T]) -> int:
        """How many of these blocks another entry holds too."""
        return sum(self._counts[block] > 1 for block in table)

    def add(self, table: Iterable[T]) -> None:
        """One more entry holds these blocks."""
        self._counts.update(table)

    def drop(self, table: Iterable[T]) -> None:
        """One entry fewer holds these blocks."""
        for block in table:
            self._counts[block] -= 1
            if not self._counts[block]:
                del self._counts[block]

    @property
    def total(self) -> int:
        """How many are held, counted for each entry."""
        return self._counts.total()

    def copy(self) -> RefCounts[T]:
        """The same counts, to try something on."""
        other: RefCounts[T] = RefCounts()
        other._counts = Counter(self._counts)
        return other

    def freed_by(self, tables: Iterable[Iterable[T]]) -> int:
        """How many blocks nobody would hold any more if all these entries went."""
        gone: Counter[T] = Counter()
        for table in tables:
            gone.update(table)
        return sum(count == self._counts[block] for block, count in gone.items())

    def remap(self, moved: Mapping[T, T]) -> None:
        """Follow blocks that have moved: old id to new id."""
        self._counts = Counter({moved.get(b, b): count for b, count in self._counts.items()})
