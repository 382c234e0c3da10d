"""Which blocks of the pool are in use, by how many owners, and where the free ones are."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from mlxceld.kv.free_runs import FreeRuns, Run


class BlockError(ValueError):
    """A block id that is not what the caller takes it for; nothing has been changed."""


class BlockAllocator:
    """Reference counts of fixed-size blocks that live in slabs; plain integers, no tensors.

    A block's id is ``slab * slab_blocks + slot`` and never changes while it lives. A block has a
    count of at least one exactly when it is not free. The caller adds slabs and takes them away;
    ``max_blocks`` bounds how many blocks may live and may be set below what lives now: then
    nothing is allocated until enough has been released.

    Every operation but :meth:`check` and :meth:`plan_compaction` costs by the blocks it is
    about, not by the size of the pool.
    """

    def __init__(self, slab_blocks: int, max_blocks: int) -> None:
        if slab_blocks < 1:
            raise ValueError(f"slab_blocks: expected at least 1, got {slab_blocks}")
        self.slab_blocks = slab_blocks
        self.max_blocks = max_blocks
        self._counts: dict[int, int] = {}
        self._slabs: dict[int, int] = {}  # slots by slab
        self._lives: dict[int, int] = {}  # live blocks by slab
        self._removable: dict[int, None] = {}
        self._unused: list[int] = []  # a heap of slab indices given back
        self._runs = FreeRuns()
        self._shared = 0
        self._allocated = 0

    @property
    def max_blocks(self) -> int:
        """How many blocks may live at once."""
        return self._max_blocks

    @max_blocks.setter
    def max_blocks(self, value: int) -> None:
        if value < 0:
            raise ValueError(f"max_blocks: expected 0 or more, got {value}")
        self._max_blocks = value

    @property
    def allocated(self) -> int:
        """Blocks that the slabs have room for."""
        return self._allocated

    @property
    def live(self) -> int:
        """Blocks with an owner."""
        return len(self._counts)

    @property
    def free(self) -> int:
        """Blocks without an owner."""
        return self._runs.total

    @property
    def shared(self) -> int:
        """Blocks with two owners or more."""
        return self._shared

    def refcount(self, block: int) -> int:
        """The number of owners; 0 for a free or unknown block."""
        return self._counts.get(block, 0)

    def allocate(self, count: int) -> list[int] | None:
        """``count`` blocks with one owner each, or None, with no effect, when they do not fit.

        Neighbouring ids where possible: one run in the fullest slab that has it, else as few
        runs as there can be.
        """
        if count < 0:
            raise ValueError(f"count: expected 0 or more, got {count}")
        if self.live + count > self._max_blocks:
            return None
        taken = self._runs.take(count)
        if taken is None:
            return None
        blocks: list[int] = []
        for slab, slot, length in taken:
            first = slab * self.slab_blocks + slot
            blocks.extend(range(first, first + length))
            self._lives[slab] += length
            self._removable.pop(slab, None)
        self._counts.update(dict.fromkeys(blocks, 1))
        return blocks

    def retain(self, blocks: Sequence[int]) -> None:
        """One owner more for each id, as often as it is given; raises BlockError if one is free."""
        self.require_live(blocks)
        for block in blocks:
            self._counts[block] += 1
            if self._counts[block] == 2:
                self._shared += 1

    def release(self, blocks: Sequence[int]) -> list[int]:
        """One owner less for each id, as often as it is given; returns those that became free.

        Raises BlockError, and releases none, when an id would go below zero.
        """
        times = Counter(blocks)
        for block, count in times.items():
            if count > self.refcount(block):
                raise BlockError(
                    f"block {block}: released {count} times with {self.refcount(block)} owners"
                    f" ({self._place(block)})"
                )
        freed = []
        for block, count in times.items():
            left = self._counts[block] - count
            if left < 2 <= self._counts[block]:
                self._shared -= 1
            if left:
                self._counts[block] = left
            else:
                del self._counts[block]
                freed.append(block)
        self._return(freed)
        return freed

    def require_live(self, blocks: Iterable[int]) -> None:
        """Raise BlockError if one of the ids has no owner."""
        for block in blocks:
            if block not in self._counts:
                raise BlockError(f"block {block}: has no owner ({self._place(block)})")

    def runs(self, blocks: Sequence[int]) -> list[Run]:
        """The ids in their order as runs of neighbours; no run crosses the edge of a slab."""
        found: list[Run] = []
        for block in blocks:
            slab, slot = divmod(block, self.slab_blocks)
            last = found[-1] if found else None
            if last is not None and (slab, slot) == (last.slab, last.slot + last.length):
                found[-1] = last._replace(length=last.length + 1)
            else:
                found.append(Run(slab, slot, 1))
        return found

    def add_slab(self, slots: int | None = None) -> int:
        """Add a slab of free blocks, ``slab_blocks`` or fewer, and return its index.

        The index of a slab that was removed is used again.
        """
        slots = self.slab_blocks if slots is None else slots
        if not 1 <= slots <= self.slab_blocks:
            raise ValueError(f"slots: expected 1 to {self.slab_blocks}, got {slots}")
        slab = heapq.heappop(self._unused) if self._unused else len(self._slabs)
        self._slabs[slab] = slots
        self._lives[slab] = 0
        self._removable[slab] = None
        self._allocated += slots
        self._runs.put(slab, (1 << slots) - 1)
        return slab

    def removable_slabs(self) -> list[int]:
        """The slabs without a live block."""
        return list(self._removable)

    def remove_slab(self, slab: int) -> None:
        """Take a slab away; raises BlockError if it is unknown or has live blocks."""
        if slab not in self._slabs:
            raise BlockError(f"slab {slab}: unknown, {len(self._slabs)} slabs exist")
        if self._lives[slab]:
            raise BlockError(
                f"slab {slab}: {self._lives[slab]} of {self._slabs[slab]} blocks have owners"
            )
        self._runs.drop(slab)
        self._allocated -= self._slabs.pop(slab)
        del self._lives[slab], self._removable[slab]
        heapq.heappush(self._unused, slab)

    def plan_compaction(self) -> dict[int, int]:
        """Which live blocks to move where, so that the emptiest slabs become free of them.

        Old id to new; nothing is changed. Only whole slabs are emptied, only into free slots of
        slabs that stay in use, and neighbours stay together where a run has room for them.
        """
        used = [slab for slab, live in self._lives.items() if live]
        emptiest = sorted(used, key=lambda slab: (self._lives[slab], -slab))
        room = sum(self._slabs[slab] - self._lives[slab] for slab in used)
        moving = victims = 0
        for slab in emptiest:
            room -= self._slabs[slab] - self._lives[slab]
            moving += self._lives[slab]
            if moving > room:
                break
            victims += 1
        targets = FreeRuns()
        for slab in emptiest[victims:]:
            targets.put(slab, self._runs.mask(slab))
        moves: dict[int, int] = {}
        for slab in emptiest[:victims]:
            first = slab * self.slab_blocks
            live = [b for b in range(first, first + self._slabs[slab]) if b in self._counts]
            for run in sorted(self.runs(live), key=lambda run: -run.length):
                olds = iter(range(first + run.slot, first + run.slot + run.length))
                for place in targets.take(run.length) or ():
                    new = place.slab * self.slab_blocks + place.slot
                    moves.update((next(olds), new + i) for i in range(place.length))
        return moves

    def move(self, moves: Mapping[int, int]) -> None:
        """Give the owners of each old id to its new id, which must be free; raises BlockError."""
        self.require_live(moves)
        for old, new in moves.items():
            slab, slot = divmod(new, self.slab_blocks)
            if not self._runs.mask(slab) >> slot & 1:
                raise BlockError(f"block {old}: cannot move to {new} ({self._place(new)})")
        if len(set(moves.values())) != len(moves):
            raise BlockError("moves: several blocks go to the same new id")
        for old, new in moves.items():
            slab, slot = divmod(new, self.slab_blocks)
            self._runs.drop(slab, 1 << slot)
            self._lives[slab] += 1
            self._removable.pop(slab, None)
            self._counts[new] = self._counts.pop(old)
        self._return(moves)

    def check(self, owners: Iterable[Sequence[int]]) -> None:
        """Recount the owners from their tables; raises AssertionError with the numbers.

        ``owners`` is every table of block ids there is.
        """
        wanted = Counter(block for table in owners for block in table)
        for block in sorted(wanted.keys() | self._counts.keys()):
            if wanted[block] != self.refcount(block):
                raise AssertionError(
                    f"block {block}: {self.refcount(block)} owners counted,"
                    f" {wanted[block]} in the tables"
                )
        if self.free + self.live != self.allocated:
            raise AssertionError(
                f"blocks: {self.free} free + {self.live} live != {self.allocated} allocated"
            )
        shared = sum(count > 1 for count in self._counts.values())
        if shared != self._shared:
            raise AssertionError(f"blocks: {self._shared} shared counted, {shared} found")
        lives = Counter(block // self.slab_blocks for block in self._counts)
        for slab, slots in self._slabs.items():
            first = slab * self.slab_blocks
            used = sum(1 << slot for slot in range(slots) if first + slot in self._counts)
            free = self._runs.mask(slab)
            if used & free or used | free != (1 << slots) - 1:
                raise AssertionError(
                    f"slab {slab}: live slots {used:#x} and free slots {free:#x} are not"
                    f" the {slots} there are"
                )
            if lives[slab] != self._lives[slab] or (slab in self._removable) != (not used):
                raise AssertionError(
                    f"slab {slab}: {self._lives[slab]} live blocks counted, {lives[slab]} found"
                )
        self._runs.check()

    def _return(self, blocks: Iterable[int]) -> None:
        """Make blocks that have lost their owners free in the index."""
        masks: dict[int, int] = {}
        for block in blocks:
            slab, slot = divmod(block, self.slab_blocks)
            masks[slab] = masks.get(slab, 0) | 1 << slot
        for slab, mask in masks.items():
            self._runs.put(slab, mask)
            self._lives[slab] -= mask.bit_count()
            if not self._lives[slab]:
                self._removable[slab] = None

    def _place(self, block: int) -> str:
        slab, slot = divmod(block, self.slab_blocks)
        slots = self._slabs.get(slab)
        if slots is None:
            return f"there is no slab {slab}"
        return f"slab {slab}, slot {slot} of {slots}"
