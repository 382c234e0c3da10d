"""Attention over shared blocks and tails is attention over whole rows."""

from __future__ import annotations

import random
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models import base
from mlx_lm.models.cache import BatchKVCache, KVCache

from mlxceld.kv import row_caches, shared_attention
from mlxceld.kv.pool import BlockPool
from mlxceld.kv.shared_attention import SharedPrefixCache, SharingError, attention
from mlxceld.kv.shared_prefix import SharedPrefix, order_by_table
from mlxceld.kv.slabs import KeysAndValues, LayerShape

BLOCK = 4
HEADS, KV_HEADS, WIDTH, VALUE_WIDTH = 6, 2, 8, 5
SCALE = WIDTH**-0.5


def _random(rng: random.Random, *shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(rng.randrange(2**31)))


class Rows:
    """Rows with a table each, as whole rows and as tails over a pool."""

    def __init__(self, tables: list[list[int]], tails: list[int], seed: int) -> None:
        self.rng = random.Random(seed)
        blocks = 1 + max((block for table in tables for block in table), default=0)
        shape = LayerShape(KV_HEADS, WIDTH, VALUE_WIDTH, mx.float32, mx.float32)
        # Slabs of three blocks: a table lies in several of them.
        self.pool = BlockPool([shape], BLOCK, 3 * BLOCK, max_bytes=1 << 20)
        stored = self._keys_and_values(blocks * BLOCK)
        assert self.pool.seal([stored], 0, blocks * BLOCK) == list(range(blocks))
        order = order_by_table(tables)
        self.tables = [tables[i] for i in order]
        self.rows: list[KeysAndValues] = []
        caches = []
        for table, tail in zip(self.tables, [tails[i] for i in order], strict=True):
            cache = KVCache()
            mine = self._keys_and_values(tail)
            if tail:
                cache.update_and_fetch(*mine)
            caches.append([cache])
            ((keys, values),) = self.pool.read(table, len(table) * BLOCK)
            self.rows.append(
                (
                    mx.concatenate([keys, mine[0]], axis=2),
                    mx.concatenate([values, mine[1]], axis=2),
                )
            )
        before = [len(table) * BLOCK for table in self.tables]
        self.batch = shared_attention.merge(caches, before)

    def _keys_and_values(self, tokens: int) -> KeysAndValues:
        return (
            _random(self.rng, 1, KV_HEADS, tokens, WIDTH),
            _random(self.rng, 1, KV_HEADS, tokens, VALUE_WIDTH),
        )

    def ask(self, count: int, *, gathers: bool = False, **options: Any) -> tuple[mx.array, ...]:
        """What ``count`` new tokens a row get from the seam, and from whole rows one by one."""
        prefix = SharedPrefix(self.pool, self.tables)
        shared_attention.bind(self.batch, prefix if prefix else None, gathers=gathers)
        (cache,) = self.batch
        rows = len(self.tables)
        queries = _random(self.rng, rows, HEADS, count, WIDTH)
        new = (
            _random(self.rng, rows, KV_HEADS, count, WIDTH),
            _random(self.rng, rows, KV_HEADS, count, VALUE_WIDTH),
        )
        window = options.pop("window_size", None)
        mask = cache.make_mask(count, **({"window_size": window} if window else {}))
        keys, values = cache.update_and_fetch(*new)
        got = attention(queries, keys, values, cache, SCALE, mask, **options)
        want = []
        for row in range(rows):
            whole = [
                mx.concatenate([old, fresh[row : row + 1]], axis=2)
                for old, fresh in zip(self.rows[row], new, strict=True)
            ]
            self.rows[row] = (whole[0], whole[1])
            length = whole[0].shape[2]
            seen = base.create_causal_mask(count, length - count, window_size=window)
            want.append(
                base.scaled_dot_product_attention(
                    queries[row : row + 1], *whole, cache=None, scale=SCALE, mask=seen, **options
                )
            )
        return got, mx.concatenate(want)


def _tree(branches: list[list[int]]) -> list[list[int]]:
    numbers: dict[tuple[int, ...], int] = {}
    return [
        [numbers.setdefault(tuple(b[:d]), len(numbers)) for d in range(1, len(b) + 1)]
        for b in branches
    ]


ROWS = st.lists(
    st.tuples(st.lists(st.integers(0, 1), max_size=4), st.integers(0, 9)), min_size=1, max_size=6
)


@settings(max_examples=60)
@given(ROWS, st.integers(0, 99), st.booleans())
def test_it_equals_whole_rows(shape: list[tuple[list[int], int]], seed: int, gathers: bool) -> None:
    rows = Rows(_tree([branch for branch, _ in shape]), [tail for _, tail in shape], seed)
    for count in (3, 1, 1, 2):
        got, want = rows.ask(count, gathers=gathers)
        assert mx.allclose(got, want, atol=1e-5).item()


def test_beyond_the_limit_of_scores_rows_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_attention, "_MOST_SCORES", 0)
    rows = Rows([[], [0, 1], [0, 1, 2]], [5, 0, 3], 1)
    got, want = rows.ask(3)
    assert mx.allclose(got, want, atol=1e-5).item()


def test_sinks_are_honoured() -> None:
    rows = Rows([[0, 1], [0, 1, 2]], [2, 3], 1)
    got, want = rows.ask(2, sinks=_random(random.Random(5), HEADS))
    assert mx.allclose(got, want, atol=1e-5).item()


def test_a_window_needs_whole_rows() -> None:
    rows = Rows([[0, 1], [0, 1, 2], []], [2, 3, 30], 1)
    with pytest.raises(SharingError, match="window_size"):
        rows.ask(2, window_size=7)
    got, want = rows.ask(2, gathers=True, window_size=7)
    assert mx.allclose(got, want, atol=1e-5).item()


def test_a_model_that_changes_what_it_is_given_is_told() -> None:
    rows = Rows([[0], [0]], [1, 1], 1)
    rows.ask(1)
    (cache,) = rows.batch
    queries = mx.zeros((2, HEADS, 1, WIDTH))
    new = mx.zeros((2, KV_HEADS, 1, WIDTH)), mx.zeros((2, KV_HEADS, 1, VALUE_WIDTH))
    mask = cache.make_mask(1)
    keys, values = cache.update_and_fetch(*new)
    with pytest.raises(SharingError, match="keys and values"):
        attention(queries, keys + 0, values, cache, SCALE, mask)
    keys, values = cache.update_and_fetch(*new)
    with pytest.raises(SharingError, match="mask"):
        attention(queries, keys, values, cache, SCALE, mx.where(mask, 0.0, -1e9))


def test_rows_that_read_nothing_take_the_dense_path() -> None:
    rows = Rows([[], []], [3, 5], 1)
    got, want = rows.ask(1)
    assert mx.allclose(got, want, atol=1e-6).item()
    assert not rows.batch[0].shares


def test_a_batch_becomes_one_of_tails_without_a_copy() -> None:
    caches = []
    for tokens in (3, 5):
        cache = KVCache()
        cache.update_and_fetch(mx.ones((1, 2, tokens, 4)), mx.ones((1, 2, tokens, 4)))
        caches.append([cache])
    plain = row_caches.merge(caches)
    (tails,) = shared_attention.as_shared(plain)
    assert isinstance(tails, SharedPrefixCache)
    assert tails.keys is plain[0].keys
    assert tails.offset.tolist() == [3, 5]
    assert shared_attention.as_shared([tails])[0] is tails


def test_tails_are_written_in_place() -> None:
    """What attention was given must not be kept, or each step copies the tails."""
    rows = Rows([[0], [0]], [2, 2], 1)
    rows.ask(1)
    (cache,) = rows.batch
    mx.eval(cache.keys)
    assert cache._fetched is None


def test_the_seam_leaves_other_caches_alone() -> None:
    cache = BatchKVCache([0, 0])
    queries = _random(random.Random(1), 2, HEADS, 1, WIDTH)
    keys = _random(random.Random(2), 2, KV_HEADS, 1, WIDTH)
    values = _random(random.Random(3), 2, KV_HEADS, 1, WIDTH)
    fetched = cache.update_and_fetch(keys, values)
    mask = cache.make_mask(1)[..., :1]
    got = attention(queries, *fetched, cache=cache, scale=SCALE, mask=mask)
    want = base.scaled_dot_product_attention(queries, *fetched, cache=cache, scale=SCALE, mask=mask)
    assert mx.array_equal(got, want).item()
