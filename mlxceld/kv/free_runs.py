"""The free slots of slabs, found by how many lie side by side."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple


class Run(NamedTuple):
    """``length`` neighbouring slots of one slab, the first of them ``slot``."""

    slab: int
    slot: int
    length: int


class FreeRuns:
    """Which slots of which slabs are free, indexed so that a search does not visit the slabs.

    A slab's free slots are the set bits of one integer. Slabs with the same longest run and the
    same number of free slots share a shelf, so a search costs at most the number of slots of one
    slab, however many slabs there are.
    """

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}
        self._places: dict[int, tuple[int, int]] = {}
        self._shelves: dict[tuple[int, int], dict[int, None]] = {}
        # Bit L is set when some slab's longest run is L, and bit F of _counts[L] when one of
        # those slabs has F free slots.
        self._longest = 0
        self._counts: defaultdict[int, int] = defaultdict(int)
        self.total = 0

    def mask(self, slab: int) -> int:
        """The free slots of a slab as bits; 0 for a slab that is full or unknown."""
        return self._masks.get(slab, 0)

    def put(self, slab: int, mask: int) -> None:
        """Make the slots of ``mask`` free; those of them that are free already stay so."""
        self._set(slab, self.mask(slab) | mask)

    def drop(self, slab: int, mask: int | None = None) -> None:
        """Take away the free slots of ``mask``, or every one, of a slab."""
        self._set(slab, 0 if mask is None else self.mask(slab) & ~mask)

    def take(self, count: int) -> list[Run] | None:
        """Take ``count`` slots in as few runs as there can be; None when fewer are free.

        What fits in one run goes into the fullest slab that has such a run, at its first place,
        so that emptier slabs can drain and be given back.
        """
        if count > self.total:
            return None
        taken = []
        while count > 0:
            longest = self._longest.bit_length() - 1
            # The largest runs first: no other choice covers the count with fewer of them.
            size = min(count, longest)
            slab = self._fullest_with(size)
            slot = _first_run(self._masks[slab], size)
            self.drop(slab, ((1 << size) - 1) << slot)
            taken.append(Run(slab, slot, size))
            count -= size
        return taken

    def _fullest_with(self, size: int) -> int:
        """A slab with the fewest free slots among those that have a run of ``size``."""
        best: tuple[int, int] | None = None
        waiting = self._longest >> size << size
        while waiting:
            longest = _lowest_bit(waiting)
            waiting &= waiting - 1
            count = _lowest_bit(self._counts[longest])
            if best is None or count < best[1]:
                best = (longest, count)
        if best is None:
            raise LookupError(f"no slab has a free run of {size} slots")
        return next(iter(self._shelves[best]))

    def _set(self, slab: int, mask: int) -> None:
        before = self._masks.pop(slab, 0)
        if before:
            self._unshelve(slab)
        self.total += mask.bit_count() - before.bit_count()
        if not mask:
            return
        self._masks[slab] = mask
        place = (_longest_run(mask), mask.bit_count())
        self._places[slab] = place
        self._shelves.setdefault(place, {})[slab] = None
        longest, count = place
        self._longest |= 1 << longest
        self._counts[longest] |= 1 << count

    def _unshelve(self, slab: int) -> None:
        place = self._places.pop(slab)
        shelf = self._shelves[place]
        del shelf[slab]
        if shelf:
            return
        del self._shelves[place]
        longest, count = place
        self._counts[longest] &= ~(1 << count)
        if not self._counts[longest]:
            del self._counts[longest]
            self._longest &= ~(1 << longest)

    def check(self) -> None:
        """Raise AssertionError when the index does not say what the masks say."""
        for slab, mask in self._masks.items():
            place = (_longest_run(mask), mask.bit_count())
            if self._places.get(slab) != place or slab not in self._shelves.get(place, {}):
                raise AssertionError(
                    f"slab {slab}: free slots {mask:#x} belong on shelf {place},"
                    f" indexed on {self._places.get(slab)}"
                )
        shelved = sum(map(len, self._shelves.values()))
        counted = sum(mask.bit_count() for mask in self._masks.values())
        if (shelved, len(self._places), self.total) != (
            len(self._masks),
            len(self._masks),
            counted,
        ):
            raise AssertionError(
                f"free index: {shelved} slabs shelved and {len(self._places)} placed of"
                f" {len(self._masks)}, {self.total} free slots counted of {counted}"
            )
        counts: defaultdict[int, int] = defaultdict(int)
        for longest, count in self._shelves:
            counts[longest] |= 1 << count
        if counts != self._counts or self._longest != sum(1 << longest for longest in counts):
            raise AssertionError(f"free index: shelves {sorted(self._shelves)} are not marked so")


def _lowest_bit(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _longest_run(mask: int) -> int:
    """The number of bits of the longest run of set bits."""
    return max(map(len, f"{mask:b}".split("0")))


def _first_run(mask: int, size: int) -> int:
    """The lowest bit at which ``size`` set bits begin; there must be such a run."""
    # After each round a bit stands for `covered` set bits from it upwards.
    covered = 1
    while covered < size:
        step = min(covered, size - covered)
        mask &= mask >> step
        covered += step
    return _lowest_bit(mask)
