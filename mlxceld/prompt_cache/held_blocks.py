"""The blocks of the pool that a store's entries hold: each counted once, freed with the last."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from mlxceld.prompt_cache.block_entry import Blocks
from mlxceld.prompt_cache.radix import RadixIndex
from mlxceld.prompt_cache.ref_counts import RefCounts


class Tabled(Protocol):
    """An entry with the ids of its blocks."""

    tokens: array[int]
    table: tuple[int, ...]


E = TypeVar("E", bound=Tabled)


class HeldBlocks:
    """Counts who holds which block, and has a reference to the pool for each block of an entry.

    ``len`` is how many are held. Without a pool no tokens need a block, and there are none.
    """

    def __init__(self, pool: Blocks | None) -> None:
        self._pool = pool
        self._holders: RefCounts[int] = RefCounts()
        self.bytes_each = 0 if pool is None else pool.bytes_per_block

    def __len__(self) -> int:
        return len(self._holders)

    @property
    def bytes(self) -> int:
        """What all held blocks take, each counted once."""
        return len(self._holders) * self.bytes_each

    @property
    def block_size(self) -> int:
        """How many tokens a block has."""
        return 1 if self._pool is None else self._pool.block_size

    def needed(self, tokens: int) -> int:
        """How many blocks so many tokens take."""
        return 0 if self._pool is None else -(-tokens // self._pool.block_size)

    def size(self, table: Sequence[int]) -> int:
        """Bytes of all blocks of a table, whoever else holds them."""
        return len(table) * self.bytes_each

    def shared(self, table: Iterable[int]) -> int:
        """How many of an entry's blocks another one holds too."""
        return self._holders.shared(table)

    def missing(self, blocks: Iterable[int]) -> int:
        """How many of these no entry holds."""
        return sum(block not in self._holders for block in blocks)

    def shareable(self, index: RadixIndex[E] | None, ids: array[int]) -> tuple[int, ...]:
        """Stored blocks that these tokens can share: whole ones, or all if all tokens are."""
        found = index.longest(ids) if index is not None and self._pool is not None else None
        if found is None:
            return ()
        depth, entry = found
        if depth == len(ids):
            return entry.table[: self.needed(depth)]
        return entry.table[: depth // self.block_size]

    def retain(self, blocks: Sequence[int]) -> None:
        """Add a reference to each block."""
        if self._pool is not None:
            self._pool.retain(blocks)

    def release(self, blocks: Sequence[int]) -> None:
        """Drop a reference to each block."""
        if self._pool is not None:
            self._pool.release(blocks)

    def add(self, table: Sequence[int]) -> None:
        """One more entry holds these blocks; the references are its already."""
        self._holders.add(table)

    def drop(self, table: Sequence[int]) -> None:
        """An entry with these blocks leaves, and its references are released."""
        self._holders.drop(table)
        self.release(table)

    def trial(self) -> RefCounts[int]:
        """Who holds what, as a copy to try on what would be left."""
        return self._holders.copy()

    def freed_by(self, tables: Iterable[Sequence[int]]) -> int:
        """Bytes that the store would no longer hold once entries with these tables were gone."""
        return self._holders.freed_by(tables) * self.bytes_each

    def held_elsewhere(self, tables: Sequence[Sequence[int]]) -> int:
        """Bytes of blocks that would leave with these tables and have other owners besides."""
        pool = self._pool
        if pool is None:
            return 0
        going: RefCounts[int] = RefCounts(tables)
        blocks = {block for table in tables for block in table}
        held = sum(
            going.count(block) == self._holders.count(block)
            and pool.refcount(block) > self._holders.count(block)
            for block in blocks
        )
        return held * self.bytes_each

    def unread(self, table: Iterable[int]) -> bool:
        """Whether entries alone hold one of these blocks."""
        pool = self._pool
        return pool is not None and any(
            pool.refcount(block) == self._holders.count(block) for block in table
        )

    def remap(self, moved: Mapping[int, int], entries: Iterable[Tabled]) -> None:
        """Follow blocks that the pool has moved, old id to new id; ``entries`` are all."""
        for entry in entries:
            if any(block in moved for block in entry.table):
                entry.table = tuple(moved.get(block, block) for block in entry.table)
        self._holders.remap(moved)

    def check(self, entries: Sequence[Tabled]) -> None:
        """Raise AssertionError, with the numbers, if these entries do not hold what is booked."""
        for entry in entries:
            blocks = self.needed(len(entry.tokens))
            assert len(entry.table) == blocks, f"{len(entry.table)} blocks, {blocks} needed"
        recount = RefCounts(entry.table for entry in entries)
        assert recount == self._holders, f"{len(recount)} blocks held, {len(self)} booked"
