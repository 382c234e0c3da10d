"""How many entries hold each block: one that several hold counts once, and goes with the last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping


class Holders:
    """Counts, by block, the entries whose table has it. ``len`` is how many blocks are held."""

    def __init__(self, tables: Iterable[Iterable[int]] = ()) -> None:
        self._counts: Counter[int] = Counter()
        for table in tables:
            self._counts.update(table)

    def __len__(self) -> int:
        return len(self._counts)

    def __contains__(self, block: int) -> bool:
        return block in self._counts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Holders) and self._counts == other._counts

    __hash__ = None  # type: ignore[assignment]

    def add(self, table: Iterable[int]) -> None:
        """One more entry holds these blocks."""
        self._counts.update(table)

    def drop(self, table: Iterable[int]) -> None:
        """One entry fewer holds these blocks."""
        for block in table:
            self._counts[block] -= 1
            if not self._counts[block]:
                del self._counts[block]

    def copy(self) -> Holders:
        """The same counts, to try something on."""
        other = Holders()
        other._counts = Counter(self._counts)
        return other

    def freed_by(self, tables: Iterable[Iterable[int]]) -> int:
        """How many blocks nobody would hold any more if all these entries went."""
        gone: Counter[int] = Counter()
        for table in tables:
            gone.update(table)
        return sum(count == self._counts[block] for block, count in gone.items())

    def remap(self, moved: Mapping[int, int]) -> None:
        """Follow blocks that have moved: old id to new id."""
        self._counts = Counter({moved.get(b, b): count for b, count in self._counts.items()})
