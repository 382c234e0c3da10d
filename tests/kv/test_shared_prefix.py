"""Block tables as a tree: what rows have in common is one segment, read once."""

from __future__ import annotations

import mlx.core as mx
from hypothesis import given
from hypothesis import strategies as st

from mlxceld.kv.pool import BlockPool
from mlxceld.kv.shared_prefix import Chain, Segment, SharedPrefix, common_blocks, order_by_table
from mlxceld.kv.slabs import LayerShape

SHAPES = [LayerShape(2, 4, 3, mx.float32, mx.float32)]
BLOCK = 2


def _pool(blocks: int) -> BlockPool:
    pool = BlockPool(SHAPES, BLOCK, 4 * BLOCK, max_bytes=1 << 20)
    keys = mx.arange(2 * blocks * BLOCK * 4, dtype=mx.float32).reshape(1, 2, -1, 4)
    values = mx.arange(2 * blocks * BLOCK * 3, dtype=mx.float32).reshape(1, 2, -1, 3)
    assert pool.seal([(keys, values)], 0, blocks * BLOCK) == list(range(blocks))
    return pool


def test_two_levels_and_a_row_of_its_own() -> None:
    tables = [[], [0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4], [5]]
    prefix = SharedPrefix(_pool(6), tables)
    assert prefix.segments == [
        Segment((0, 1), 1, 4),
        Segment((2, 3), 2, 4),
        Segment((4,), 3, 4),
        Segment((5,), 4, 5),
    ]
    assert prefix.chains == [
        Chain((), 0, 1),
        Chain((0,), 1, 2),
        Chain((0, 1), 2, 3),
        Chain((0, 1, 2), 3, 4),
        Chain((3,), 4, 5),
    ]
    assert prefix.lengths == [0, 4, 8, 10, 2]
    assert prefix.longest == 10


def test_rows_with_one_table_are_one_chain() -> None:
    prefix = SharedPrefix(_pool(2), [[0, 1]] * 3)
    assert prefix.segments == [Segment((0, 1), 0, 3)]
    assert prefix.chains == [Chain((0,), 0, 3)]


def test_without_tables_there_is_nothing_to_read() -> None:
    assert not SharedPrefix(_pool(1), [[], []])


def test_common_blocks() -> None:
    assert common_blocks([1, 2, 3], [1, 2, 4]) == 2
    assert common_blocks([1, 2], [1, 2, 4]) == 2
    assert common_blocks([], [1]) == 0
    assert common_blocks([2], [1]) == 0


@given(st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=1, max_size=7))
def test_every_row_reads_its_own_table_in_order(branches: list[list[int]]) -> None:
    # A path through a tree of blocks: equal beginnings are equal blocks.
    numbers: dict[tuple[int, ...], int] = {}
    tables = []
    for branch in branches:
        table = []
        for depth in range(1, len(branch) + 1):
            table.append(numbers.setdefault(tuple(branch[:depth]), len(numbers)))
        tables.append(table)
    tables = [tables[row] for row in order_by_table(tables)]
    pool = _pool(max(1, len(numbers)))
    prefix = SharedPrefix(pool, tables)
    reads: list[list[int]] = [[] for _ in tables]
    for segment in prefix.segments:
        for row in range(segment.first, segment.last):
            reads[row] += segment.blocks
    assert reads == tables
    # No block is in two segments: each is read once.
    blocks = [block for segment in prefix.segments for block in segment.blocks]
    assert len(blocks) == len(set(blocks))
    for row, chain in ((row, c) for c in prefix.chains for row in range(c.first, c.last)):
        assert [b for i in chain.segments for b in prefix.segments[i].blocks] == tables[row]
    if not prefix:
        return
    keys, values = prefix.gathered(0)
    for row, table in enumerate(tables):
        if table:
            ((want_keys, want_values),) = pool.read(table, len(table) * BLOCK)
            skipped = prefix.longest - len(table) * BLOCK
            assert mx.array_equal(keys[row, :, skipped:], want_keys[0]).item()
            assert mx.array_equal(values[row, :, skipped:], want_values[0]).item()
            assert not mx.any(keys[row, :, :skipped]).item()
