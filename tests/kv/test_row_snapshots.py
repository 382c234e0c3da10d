"""A row's state out of its caches and into new ones: its own memory, in order, and no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
)

from mlxceld.kv import snapshots
from mlxceld.kv.snapshots import capture, restore
from mlxceld.models.caches.state import RecurrentState, SnapshotError, WindowState

WINDOW = 8


def _token(at: int, count: int = 1) -> mx.array:
    """Keys or values ``[1, 2, count, 3]`` that tell which token they are of."""
    row = mx.arange(at, at + count, dtype=mx.float32)[None, None, :, None]
    return mx.broadcast_to(row, (1, 2, count, 3))


def _feed(cache: Any, *counts: int, start: int = 0) -> int:
    for count in counts:
        cache.update_and_fetch(_token(start, count), -_token(start, count))
        start += count
    mx.eval(cache.keys, cache.values)
    return start


def _model(*caches: Any) -> Any:
    """A model whose only deed is to make these caches."""
    return SimpleNamespace(make_cache=lambda: [make() for make in caches])


def _held(array: mx.array | None) -> list[float]:
    assert array is not None
    return [float(x) for x in array[0, 0, :, 0].tolist()]  # type: ignore[union-attr,arg-type]


@pytest.mark.parametrize(
    ("counts", "kept"),
    [
        ((5,), range(5)),
        ((5, 1, 1), range(7)),
        ((8,), range(8)),
        ((13,), range(5, 13)),  # a chunk left more than the window
        ((6, 1, 1, 1, 1, 1), range(3, 11)),  # rotated, in the middle of its ring
        ((13, 1, 1, 1), range(8, 16)),
        ((13, 6), range(11, 19)),
    ],
)
def test_a_window_is_in_order_and_no_longer_than_it_is(counts: Any, kept: range) -> None:
    cache = RotatingKVCache(max_size=WINDOW)
    tokens = _feed(cache, *counts)
    state = capture([cache], tokens)
    (window,) = state.layers
    assert isinstance(window, WindowState)
    assert _held(window.keys) == list(kept)
    assert _held(window.values) == [-float(token) for token in kept]
    assert state.nbytes == 2 * len(kept) * 2 * 3 * 4
    # One that goes on from it sees what the first would have seen.
    other = restore(_model(lambda: RotatingKVCache(max_size=WINDOW)), state, [])[0]
    for step in (1, 1, 4, 1, 1):
        masks = [c.make_mask(step, return_array=True) for c in (cache, other)]
        seen = []
        for c in (cache, other):
            keys, _ = c.update_and_fetch(_token(tokens, step), -_token(tokens, step))
            seen.append(sorted(_held(keys))[-WINDOW:])
        assert seen[0] == seen[1]
        if step > 1:
            # What a mask hides may differ, not what it shows of the newest tokens.
            assert masks[0][-1].sum().item() == masks[1][-1].sum().item()
        tokens += step
    assert cache.offset == other.offset == tokens


def test_a_window_that_keeps_its_first_tokens() -> None:
    cache = RotatingKVCache(max_size=WINDOW, keep=2)
    tokens = _feed(cache, 6, 1, 1, 1, 1, 1)
    (window,) = capture([cache], tokens).layers
    assert isinstance(window, WindowState)
    assert _held(window.keys) == [0, 1, 5, 6, 7, 8, 9, 10]
    cache = RotatingKVCache(max_size=WINDOW, keep=2)
    tokens = _feed(cache, 5, 7)
    (window,) = capture([cache], tokens).layers
    assert isinstance(window, WindowState)
    assert _held(window.keys) == [0, 1, 6, 7, 8, 9, 10, 11]


def test_what_is_taken_and_what_resumes_leave_each_other_alone() -> None:
    cache = RotatingKVCache(max_size=WINDOW)
    tokens = _feed(cache, 6, 1, 1)  # full: from here on it is written in place
    state = capture([cache], tokens)
    module = _model(lambda: RotatingKVCache(max_size=WINDOW))
    one, two = (restore(module, state, [])[0] for _ in range(2))
    _feed(cache, 1, 1, start=100)
    _feed(one, 1, 1, 1, start=200)
    _feed(two, 1, start=300)
    (window,) = state.layers
    assert isinstance(window, WindowState)
    assert _held(window.keys) == list(range(8))
    assert sorted(_held(one.keys)) == [3, 4, 5, 6, 7, 200, 201, 202]
    assert sorted(_held(two.keys)) == [1, 2, 3, 4, 5, 6, 7, 300]


def test_nothing_is_pinned_that_a_state_is_cut_from() -> None:
    whole = mx.zeros((1, 1_000_000))
    mx.eval(whole)
    cache = ArraysCache(3)
    cache[0], cache[2] = whole[:, :10], whole[:, 5:]
    before = mx.get_active_memory()
    state = capture([cache], 4)
    (recurrent,) = state.layers
    assert isinstance(recurrent, RecurrentState)
    assert recurrent.slots[1] is None
    assert state.nbytes == 4 * (10 + 1_000_000 - 5)
    del whole, cache
    # The large array is gone, and its copy is there.
    assert abs(mx.get_active_memory() - before) < 100_000


def test_composite_caches_and_what_goes_to_the_pool() -> None:
    module = _model(lambda: CacheList(ArraysCache(1), KVCache()), lambda: KVCache())
    row = module.make_cache()
    row[0][0][0] = mx.ones((1, 4))
    _feed(row[0][1], 3)
    _feed(row[1], 3)
    state = capture(row, 3)
    assert [type(layer) for layer in state.layers] == [RecurrentState, type(None), type(None)]
    assert len(snapshots.pageable(row)) == 2
    pages = [(_token(i * 10, 3), _token(i * 10, 3)) for i in range(2)]
    again = restore(module, state, pages)
    assert _held(again[0][1].keys) == [0, 1, 2]
    assert _held(again[1].keys) == [10, 11, 12]
    assert again[0][1].offset == again[1].offset == 3
    assert mx.array_equal(again[0][0][0], mx.ones((1, 4))).item()


def test_attention_in_chunks_goes_on_where_it_was() -> None:
    cache = ChunkedKVCache(chunk_size=4)
    tokens = _feed(cache, 6)
    cache.maybe_trim_front()
    state = capture([cache], tokens)
    assert state.nbytes == 2 * 4 * 2 * 3 * 4
    other = restore(_model(lambda: ChunkedKVCache(chunk_size=4)), state, [])[0]
    for c in (cache, other):
        _feed(c, 1, start=tokens)
    assert (other.offset, other.start_position) == (cache.offset, cache.start_position) == (7, 2)
    assert _held(other.keys_and_values()[0]) == [2, 3, 4, 5, 6]


def test_a_cache_of_another_length_or_kind_is_refused() -> None:
    cache = KVCache()
    _feed(cache, 3)
    with pytest.raises(SnapshotError, match="KVCache holds 3 tokens, expected 4"):
        capture([cache], 4)

    class OddCache(KVCache):
        pass

    with pytest.raises(SnapshotError, match="OddCache"):
        capture([OddCache()], 0)
    assert "OddCache" in snapshots.unsupported_reason([KVCache(), CacheList(OddCache())])
    assert (
        snapshots.unsupported_reason([KVCache(), CacheList(ArraysCache(2), RotatingKVCache(4))])
        == ""
    )
