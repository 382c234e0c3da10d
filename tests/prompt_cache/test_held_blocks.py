"""What the entries of a store hold of the pool, with the real allocator's references."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import pytest

from mlxceld.kv.blocks import BlockAllocator
from mlxceld.prompt_cache.held_blocks import HeldBlocks
from mlxceld.prompt_cache.radix import RadixIndex, as_tokens


class Pool:
    """Four tokens and ten bytes a block."""

    block_size = 4
    bytes_per_block = 10

    def __init__(self) -> None:
        self.allocator = BlockAllocator(16, 16)
        self.allocator.add_slab()
        self.retain, self.release = self.allocator.retain, self.allocator.release
        self.refcount = self.allocator.refcount

    def new(self, count: int) -> tuple[int, ...]:
        blocks = self.allocator.allocate(count)
        assert blocks is not None
        return tuple(blocks)


@dataclass
class Entry:
    tokens: array[int]
    table: tuple[int, ...]


@pytest.fixture
def pool() -> Pool:
    return Pool()


def test_a_block_of_two_entries_counts_once_and_is_freed_with_the_last(pool):
    held = HeldBlocks(pool)
    first = pool.new(3)
    held.add(first)
    held.retain(first[:2])
    second = (*first[:2], *pool.new(1))
    held.add(second)
    assert (len(held), held.bytes, held.size(first)) == (4, 40, 30)
    assert (held.shared(first), held.missing([*first, 15])) == (2, 1)
    assert (held.freed_by([first]), held.freed_by([first, second])) == (10, 40)
    held.drop(first)
    assert (len(held), held.bytes) == (3, 30)
    pool.allocator.check([second])
    held.drop(second)
    assert len(held) == 0
    pool.allocator.check([])


def test_what_a_running_request_reads_is_held_elsewhere(pool):
    held = HeldBlocks(pool)
    table = pool.new(2)
    held.add(table)
    assert (held.held_elsewhere([table]), held.unread(table)) == (0, True)
    pool.retain(table[:1])
    assert (held.held_elsewhere([table]), held.unread(table)) == (10, True)
    pool.retain(table[1:])
    assert (held.held_elsewhere([table]), held.unread(table)) == (20, False)


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(range(10), 3), (range(8), 2), (range(6), 2), ([*range(6), 99], 1)]
)
def test_whole_blocks_are_shared_and_a_part_only_where_it_is_all(pool, tokens, blocks):
    held, index = HeldBlocks(pool), RadixIndex[Entry]()
    entry = Entry(as_tokens(range(10)), pool.new(3))
    index.add(entry.tokens, "s", entry)
    wanted = entry.table[:blocks]
    assert held.shareable(index, as_tokens(tokens)) == wanted
    assert held.shareable(None, as_tokens(tokens)) == ()


def test_blocks_that_moved_are_followed_in_the_tables_and_in_the_counts(pool):
    held = HeldBlocks(pool)
    entry = Entry(as_tokens(range(5)), (3, 4))
    held.add(entry.table)
    held.remap({4: 1}, [entry])
    assert entry.table == (3, 1)
    held.check([entry])
    with pytest.raises(AssertionError, match="2 blocks, 1 needed"):
        held.check([Entry(as_tokens(range(4)), (3, 1))])
    with pytest.raises(AssertionError, match="0 blocks held, 2 booked"):
        held.check([])


def test_without_a_pool_there_are_no_blocks():
    held = HeldBlocks(None)
    index = RadixIndex[Entry]()
    index.add(as_tokens([1, 2]), "s", Entry(as_tokens([1, 2]), ()))
    assert (held.needed(100), held.bytes, held.size(()), held.held_elsewhere([()])) == (0, 0, 0, 0)
    assert held.shareable(index, as_tokens([1, 2])) == ()
    assert not held.unread(())
