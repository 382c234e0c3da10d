"""Blocks of the pool give back what was sealed, and memory comes and goes with them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from block_rows import SHAPES, cut, random_rows, require_same
from mlxceld.kv.blocks import BlockError
from mlxceld.kv.pool import BlockPool, PoolStats
from mlxceld.kv.slabs import KeysAndValues, LayerShape, Slab

BLOCK = 4
SLAB = 6 * BLOCK

# 2 x 16 MiB a slab, beside which one seal is nothing.
LARGE = (LayerShape(4, 64, 64, mx.float32, mx.float32),)
LARGE_SLAB = 16384
# The same with one head: a run of tokens is then contiguous, and a view of it easily kept.
FLAT = (LayerShape(1, 256, 256, mx.float32, mx.float32),)


def make(slabs: float = 10) -> BlockPool:
    per_token = sum(shape.token_bytes for shape in SHAPES)
    return BlockPool(SHAPES, BLOCK, SLAB, max_bytes=int(slabs * SLAB * per_token))


def seal(pool: BlockPool, rows: list[KeysAndValues], start: int, stop: int) -> list[int]:
    blocks = pool.seal(rows, start, stop)
    assert blocks is not None
    return blocks


@pytest.fixture(autouse=True)
def no_garbage() -> None:
    """Let go of what other tests have left: it would leave while memory is measured."""
    gc.collect()


def peak_of(work: Callable[[], object]) -> int:
    """The peak of active memory while ``work`` runs, bytes."""
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    work()
    return max(before, mx.get_peak_memory())


def test_any_range_of_tokens_comes_back() -> None:
    pool = make()
    rows = random_rows(1, 2 * BLOCK + 3)
    for start in range(BLOCK + 1):
        for stop in range(start, 2 * BLOCK + 4):
            blocks = seal(pool, rows, start, stop)
            assert len(blocks) == -(-(stop - start) // BLOCK)
            require_same(pool.read(blocks, stop - start), cut(rows, start, stop))
            pool.release(blocks)


def test_every_shorter_read_is_the_beginning() -> None:
    pool = make()
    rows = random_rows(2, 2 * SLAB + 5)
    blocks = seal(pool, rows, 0, 2 * SLAB + 5)
    for tokens in (0, 1, BLOCK, SLAB - 1, SLAB, SLAB + 1, 2 * SLAB + 5):
        require_same(pool.read(blocks, tokens), cut(rows, 0, tokens))


def test_blocks_that_lie_apart_are_read_in_the_order_of_the_table() -> None:
    pool = make()
    rows = random_rows(3, 40)
    first, second = seal(pool, rows, 0, 12), seal(pool, rows, 12, 24)
    pool.release(first[1:2])
    third = seal(pool, rows, 24, 30)
    table = [second[2], first[0], *third]
    want = [
        (mx.concatenate(k, axis=2), mx.concatenate(v, axis=2))
        for k, v in (
            zip(*parts, strict=True)
            for parts in zip(*(cut(rows, *at) for at in ((20, 24), (0, 4), (24, 30))), strict=True)
        )
    ]
    require_same(pool.read(table, 14), want)


def test_a_run_is_one_view() -> None:
    pool = make()
    rows = random_rows(4, SLAB + 3)
    blocks = seal(pool, rows, 0, SLAB + 3)
    for layer in range(len(SHAPES)):
        views = pool.views(layer, blocks, SLAB + 3)
        assert [keys.shape[1] for keys, _ in views] == [SLAB, 3]
        joined = tuple(mx.concatenate(side, axis=1)[None] for side in zip(*views, strict=True))
        require_same([joined], [rows[layer]])


def test_rows_may_have_room_beyond_their_tokens() -> None:
    pool = make()
    rows = random_rows(5, 256)
    require_same(pool.read(seal(pool, rows, 3, 30), 27), cut(rows, 3, 30))


def test_stats_count_a_shared_block_once() -> None:
    pool = make(slabs=3)
    assert pool.stats() == PoolStats(BLOCK, 0, 0, 0, 0, 0, 0, 18)
    blocks = seal(pool, random_rows(6, 9), 0, 9)
    pool.retain(blocks[:2])
    size = pool.bytes_per_block
    assert size == BLOCK * (2 * (4 + 3) * 4 + (5 + 2) * 2 + 3 * 2)
    assert pool.stats() == PoolStats(BLOCK, 6, 3, 3, 2, 6 * size, 3 * size, 18)
    pool.check([blocks, blocks[:2]])
    assert pool.release(blocks) == blocks[2:]
    assert [pool.refcount(block) for block in blocks] == [1, 1, 0]
    with pytest.raises(BlockError, match=f"block {blocks[2]}: has no owner"):
        pool.read(blocks, 9)


def test_the_budget_is_used_to_the_last_block_and_never_exceeded() -> None:
    pool = make(slabs=1.5)
    rows = random_rows(7, 60)
    first = seal(pool, rows, 0, SLAB)
    assert pool.stats().blocks_allocated == 6
    second = seal(pool, rows, SLAB, SLAB + 3 * BLOCK)
    assert pool.stats().blocks_allocated == pool.stats().block_budget == 9
    assert pool.seal(rows, 0, 1) is None
    require_same(pool.read(first + second, SLAB + 3 * BLOCK), cut(rows, 0, SLAB + 3 * BLOCK))


def test_a_seal_that_does_not_fit_changes_nothing() -> None:
    pool = make(slabs=2)
    rows = random_rows(8, 60)
    blocks = seal(pool, rows, 0, 30)
    stats, active = pool.stats(), mx.get_active_memory()
    assert pool.seal(rows, 0, 5 * BLOCK) is None
    assert pool.seal(rows, 0, 60) is None
    assert pool.stats() == stats
    assert mx.get_active_memory() == active
    require_same(pool.read(blocks, 30), cut(rows, 0, 30))
    pool.check([blocks])
    seal(pool, rows, 0, 4 * BLOCK)


def test_a_seal_that_fails_halfway_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make()
    rows = random_rows(9, 30)
    blocks = seal(pool, rows, 0, 10)
    stats = pool.stats()
    write = Slab.write

    def broken(self: Slab, layer: int, *rest: Any) -> None:
        if layer == 1:
            raise RuntimeError("out of memory")
        write(self, layer, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Slab, "write", broken)
        with pytest.raises(RuntimeError, match="out of memory"):
            pool.seal(rows, 10, 20)
    assert pool.stats() == stats
    pool.check([blocks])
    require_same(pool.read(blocks, 10), cut(rows, 0, 10))
    require_same(pool.read(seal(pool, rows, 10, 20), 10), cut(rows, 10, 20))


def test_growth_that_fails_halfway_adds_no_slab(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make()
    rows = random_rows(10, 3 * SLAB)
    made: list[int] = []

    def scarce(shapes: Any, tokens: int) -> Slab:
        made.append(tokens)
        if len(made) == 3:
            raise RuntimeError("out of memory")
        return Slab(shapes, tokens)

    with monkeypatch.context() as patch:
        patch.setattr("mlxceld.kv.pool.Slab", scarce)
        with pytest.raises(RuntimeError, match="out of memory"):
            pool.seal(rows, 0, 3 * SLAB)
    assert len(made) == 3
    assert pool.stats().blocks_allocated == 0
    pool.check([])


def _wrong(rows: list[KeysAndValues], what: str) -> list[KeysAndValues]:
    keys, values = rows[1]
    wrong = {
        "dtype": (keys.astype(mx.float32), values),
        "width": (keys, keys),
        "heads": (mx.concatenate([keys, keys], axis=1), values),
        "batch": (mx.concatenate([keys, keys], axis=0), values),
        "rank": (keys[0], values),
        "short": (keys, values[:, :, :5]),
    }[what]
    return [rows[0], wrong, *rows[2:]]


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("dtype", r"layer 1, keys: expected .*bfloat16 \[1, 1, 6 or more, 5\], got .*float32"),
        ("width", r"layer 1, values: expected .*\[1, 1, 6 or more, 2\], got .*\[1, 1, 8, 5\]"),
        ("heads", r"layer 1, keys: expected .*\[1, 1, .* got .*\[1, 2, 8, 5\]"),
        ("batch", r"layer 1, keys: expected .*\[1, 1, .* got .*\[2, 1, 8, 5\]"),
        ("rank", r"layer 1, keys: expected .* got .*\[1, 8, 5\]"),
        ("short", r"layer 1, values: expected .* got .*\[1, 1, 5, 2\]"),
    ],
)
def test_rows_of_another_shape_are_refused(what: str, text: str) -> None:
    pool = make()
    rows = random_rows(11, 8)
    with pytest.raises(ValueError, match=text):
        pool.seal(_wrong(rows, what), 0, 6)
    assert pool.stats().blocks_allocated == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"block_size": 0}, "block_size: expected at least 1 token, got 0"),
        ({"slab_tokens": 3}, "slab_tokens: expected at least one block of 4, got 3"),
        ({"max_bytes": -1}, "max_bytes: expected 0 or more, got -1"),
        ({"shapes": ()}, "shapes: expected at least one layer"),
    ],
)
def test_sizes_that_make_no_pool_are_named(arguments: dict[str, Any], text: str) -> None:
    sizes = {"shapes": SHAPES, "block_size": 4, "slab_tokens": 24, "max_bytes": 1} | arguments
    with pytest.raises(ValueError, match=text):
        BlockPool(**sizes)


def test_slabs_may_begin_small_and_grow_with_what_is_stored() -> None:
    per_block = BLOCK * sum(shape.token_bytes for shape in SHAPES)
    pool = BlockPool(SHAPES, BLOCK, 8 * BLOCK, max_bytes=30 * per_block, first_slab_tokens=BLOCK)
    rows = random_rows(20, 30 * BLOCK)
    allocated = []
    # The last one finds no room for a slab as large as the others.
    for blocks in (1, 1, 1, 1, 3, 4, 12, 4):
        seal(pool, rows, 0, blocks * BLOCK)
        allocated.append(pool.stats().blocks_allocated)
    assert allocated == [1, 2, 4, 4, 8, 16, 24, 30]


def test_bad_ranges_are_named() -> None:
    pool = make()
    rows = random_rows(12, 8)
    with pytest.raises(ValueError, match="got 3, 2"):
        pool.seal(rows, 3, 2)
    with pytest.raises(ValueError, match="expected 3 layers, got 2"):
        pool.seal(rows[:2], 0, 2)
    blocks = seal(pool, rows, 0, 5)
    with pytest.raises(ValueError, match="expected 0 to 8 in 2 blocks, got 9"):
        pool.read(blocks, 9)


@pytest.mark.parametrize("shapes", [LARGE, FLAT], ids=["heads", "one head"])
def test_a_seal_writes_in_place(shapes: tuple[LayerShape, ...]) -> None:
    pool = BlockPool(shapes, 16, LARGE_SLAB, max_bytes=1 << 30)
    rows = random_rows(13, 100, shapes)
    blocks = seal(pool, rows, 0, 100)
    copy = pool.read(blocks, 40)  # one run
    mx.eval(copy)
    pool.release(blocks[2:4])  # so that the next one is written in two pieces
    before = mx.get_active_memory()
    assert before > 32 << 20
    assert peak_of(lambda: seal(pool, rows, 0, 90)) < 1.1 * before
    require_same(copy, cut(rows, 0, 40))


def test_a_view_that_is_kept_would_be_noticed() -> None:
    others = mx.get_active_memory()
    pool = BlockPool(LARGE, 16, LARGE_SLAB, max_bytes=1 << 30)
    rows = random_rows(14, 100, LARGE)
    kept = pool.views(0, seal(pool, rows, 0, 100), 100)
    mx.eval(kept)
    before = mx.get_active_memory()
    peak = peak_of(lambda: seal(pool, rows, 0, 100))
    assert peak - others > 1.4 * (before - others)


def test_what_is_freed_goes_back_but_for_one_spare() -> None:
    start = mx.get_active_memory()
    pool = BlockPool(LARGE, 16, LARGE_SLAB // 4, max_bytes=1 << 30)
    slab = pool.bytes_per_block * LARGE_SLAB // 4 // 16
    rows = random_rows(15, LARGE_SLAB // 4 + 1, LARGE)
    rows_bytes = sum(array.nbytes for pair in rows for array in pair)
    tables = [seal(pool, rows, 0, LARGE_SLAB // 4 + 1) for _ in range(3)]
    reserved = pool.stats().bytes_reserved
    assert reserved == 4 * slab
    assert abs(mx.get_active_memory() - start - rows_bytes - reserved) < 1 << 16
    for table in tables[:2]:
        pool.release(table)
    assert pool.give_back() == slab
    assert pool.stats().bytes_reserved == 3 * slab
    assert abs(mx.get_active_memory() - start - rows_bytes - 3 * slab) < 1 << 16
    assert mx.get_cache_memory() == 0
    assert pool.give_back() == 0
    assert pool.give_back(spare=False) == slab
    require_same(pool.read(tables[2], LARGE_SLAB // 4 + 1), rows)


def test_a_smaller_budget_takes_effect_at_once_and_spares_what_lives() -> None:
    pool = make(slabs=4)
    rows = random_rows(16, 4 * SLAB)
    first, second = seal(pool, rows, 0, SLAB), seal(pool, rows, SLAB, 3 * SLAB)
    pool.release(second)
    slab = 6 * pool.bytes_per_block
    assert pool.resize(slab + slab // 2) == 2 * slab
    assert pool.stats().block_budget == 9
    assert pool.stats().blocks_allocated == 6
    pool.resize(slab // 2)
    require_same(pool.read(first, SLAB), cut(rows, 0, SLAB))
    assert pool.seal(rows, 0, 1) is None
    pool.release(first)
    assert pool.resize(0) == slab
    assert pool.stats() == PoolStats(BLOCK, 0, 0, 0, 0, 0, 0, 0)
    pool.resize(2 * slab)
    require_same(pool.read(seal(pool, rows, 0, 30), 30), cut(rows, 0, 30))


def test_compaction_moves_data_and_counts_and_frees_slabs() -> None:
    pool = make()
    rows = random_rows(17, 4 * SLAB)
    tables = [seal(pool, rows, i * SLAB, (i + 1) * SLAB) for i in range(4)]
    kept = [
        table[i : i + n] for table, i, n in zip(tables, (0, 2, 1, 0), (5, 1, 2, 1), strict=True)
    ]
    want = [
        cut(rows, block * BLOCK, (block + len(table)) * BLOCK)
        for table, block in zip(kept, (0, 8, 13, 18), strict=True)
    ]
    pool.retain(kept[2])
    for table in tables:
        pool.release([b for b in table if not any(b in part for part in kept)])
    moves = pool.compact()
    assert set(moves) == set(kept[1] + kept[3])
    kept = [[moves.get(block, block) for block in table] for table in kept]
    for table, rows_of_it in zip(kept, want, strict=True):
        require_same(pool.read(table, len(table) * BLOCK), rows_of_it)
    assert [pool.refcount(block) for block in kept[2]] == [2, 2]
    pool.check([*kept, kept[2]])
    pool.give_back()
    assert pool.stats().blocks_allocated == 3 * 6
    assert pool.compact() == {}


def test_compaction_that_fails_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make()
    rows = random_rows(18, 2 * SLAB)
    first, second = seal(pool, rows, 0, SLAB), seal(pool, rows, SLAB, 2 * SLAB)
    pool.release(first[2:] + second[2:])

    def broken(self: Slab, *rest: Any) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(Slab, "write", broken)
        with pytest.raises(RuntimeError, match="out of memory"):
            pool.compact()
    pool.check([first[:2], second[:2]])
    require_same(pool.read(second[:2], 8), cut(rows, SLAB, SLAB + 8))
    assert len(pool.compact()) == 2


def test_compaction_writes_in_place() -> None:
    pool = BlockPool(LARGE, 16, LARGE_SLAB, max_bytes=1 << 30)
    rows = random_rows(19, LARGE_SLAB, LARGE)
    full = seal(pool, rows, 0, LARGE_SLAB)
    few = seal(pool, rows, 0, 64)
    pool.release(full[10:20])
    before = mx.get_active_memory()
    moves: dict[int, int] = {}
    assert peak_of(lambda: moves.update(pool.compact())) < 1.1 * before
    require_same(pool.read([moves[block] for block in few], 64), cut(rows, 0, 64))


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_a_slab_that_is_filled_in_one_go_keeps_nothing_of_the_rows(tokens: int) -> None:
    shapes = (LayerShape(1, 65536, 65536, mx.float32, mx.float32),)
    pool = BlockPool(shapes, 1, tokens, max_bytes=1 << 30)
    rows = random_rows(20, 8 * tokens, shapes)
    want = [(mx.array(keys), mx.array(values)) for keys, values in cut(rows, tokens, 2 * tokens)]
    mx.eval(want)
    blocks = seal(pool, rows, tokens, 2 * tokens)
    active = mx.get_active_memory()
    nbytes = sum(array.nbytes for pair in rows for array in pair)
    del rows
    assert active - mx.get_active_memory() == nbytes
    require_same(pool.read(blocks, tokens), want)
