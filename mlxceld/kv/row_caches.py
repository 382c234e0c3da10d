"""The caches of one sequence alone, and how they join, leave and fill the caches of a batch.

A *row* is the list of caches that mlx-lm's ``make_prompt_cache`` gives a single sequence; a
*batch* is the list of their batched counterparts. Everything here works on whole lists and never
looks at which model they belong to.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    CacheList,
    KVCache,
    make_prompt_cache,
)

log = logging.getLogger(__name__)

Caches = list[Any]

_POSITIONS = ("offset", "left_padding", "lengths")
"""What mlx-lm's batched caches call their arrays of one number a row."""


def new_row(module: Any) -> Caches:
    """Empty caches for one sequence."""
    return list(make_prompt_cache(module))


def can_merge(row: Caches) -> bool:
    """Whether every cache of a row has a batched counterpart."""
    return all(_mergeable(cache) for cache in row)


def _mergeable(cache: Any) -> bool:
    if isinstance(cache, CacheList):
        return all(_mergeable(member) for member in cache.caches)
    return hasattr(cache, "merge")


def merge(rows: Sequence[Caches]) -> Caches:
    """One batch out of single rows, in their order; the rows' arrays are copied."""
    return [column[0].merge(list(column)) for column in zip(*rows, strict=True)]


def leaves(caches: Sequence[Any]) -> Iterator[Any]:
    """The caches of a row or a batch in order, with those inside composite ones in their place."""
    for cache in caches:
        if isinstance(cache, CacheList):
            yield from leaves(cache.caches)
        else:
            yield cache


def extend(batch: Caches, other: Caches) -> bool:
    """Append the rows of ``other`` to ``batch``, which uses ``other`` up; False if they do not fit.

    Then ``batch`` is as it was. Rows do not fit where a state has a length of its own: the last
    tokens that a model remembers of a prompt shorter than that.
    """
    if not fit(batch, other):
        return False
    before = [(leaf, dict(vars(leaf))) for leaf in leaves(batch)]
    try:
        for mine, theirs in zip(batch, other, strict=True):
            mine.extend(theirs)
    except Exception:
        log.debug("rows cannot join a batch", exc_info=True)
        for leaf, attributes in before:
            vars(leaf).update(attributes)
        return False
    return True


def fit(one: Caches, other: Caches) -> bool:
    """Whether recurrent states agree in all but their number of rows, as a batch's have to.

    mlx-lm's merge would repeat a shorter state to the length of a longer one.
    """
    return all(
        a is None or b is None or a.shape[1:] == b.shape[1:]
        for mine, theirs in zip(leaves(one), leaves(other), strict=True)
        if isinstance(mine, ArraysCache) and isinstance(theirs, ArraysCache)
        for a, b in zip(mine.cache, theirs.cache, strict=True)
    )


def keep_rows(batch: Caches, indices: Sequence[int]) -> None:
    """Reduce a batch to the rows at ``indices``, at least one."""
    wanted = list(indices)
    for cache in batch:
        cache.filter(wanted)


def extract(batch: Caches, index: int) -> Caches:
    """A copy of one row of a batch, which pins nothing of the batch's arrays."""
    return [_extract(cache, index) for cache in batch]


def _extract(cache: Any, index: int) -> Any:
    # ArraysCache.extract slices a view, which would keep the whole batch's array alive (and so
    # would mx.contiguous, for small arrays), and fails on a slot that was never written.
    if isinstance(cache, ArraysCache):
        alone = ArraysCache(len(cache.cache))
        for slot, array in enumerate(cache.cache):
            if array is not None:
                alone[slot] = mx.take(array, mx.array([index]), axis=0)
        return alone
    if isinstance(cache, CacheList):
        return CacheList(*(_extract(member, index) for member in cache.caches))
    if isinstance(cache, BatchKVCache) and cache.keys is None:
        # All that the row has is in the pool so far, and BatchKVCache.extract expects an array.
        return KVCache()
    return cache.extract(index)


def prepare(batch: Caches, lengths: Sequence[int], width: int) -> None:
    """Announce one right-padded forward pass of ``width`` tokens, ``lengths[i]`` of them real.

    Goes around every padded pass with the lengths inside that pass: announced once for several
    passes, recurrent caches run over the padding.
    """
    padding = [width - length for length in lengths]
    for cache in batch:
        cache.prepare(lengths=list(lengths), right_padding=padding)


def finalize(batch: Caches) -> None:
    """End what :func:`prepare` announced: padding moves to the front, where masks hide it."""
    for cache in batch:
        cache.finalize()


def share_offsets(batch: Caches) -> None:
    """Let the key/value caches of a batch begin their next pass with one offset array.

    They are equal, as all have seen the same tokens of the same rows; what a model derives from one
    array it derives once. mlx-lm gives a cache a new array with each update.
    """
    first: BatchKVCache | None = None
    for cache in batch:
        if not isinstance(cache, BatchKVCache):
            continue
        if first is None:
            first = cache
        elif cache._idx == first._idx and cache.offset.shape == first.offset.shape:
            cache.offset = first.offset


def positions(batch: Caches) -> list[mx.array]:
    """The small arrays, each once, that tell where the rows of a batch are: offsets, paddings.

    A cache adds to them with every pass, but what a model computes need not depend on each: not on
    the offset of a layer without rotary positions, nor on the padding of recurrent layers but one.
    Never evaluated, they would hold a lazy graph that is longer after every step. Whoever evaluates
    less than :func:`arrays` evaluates these too.
    """
    found: dict[int, mx.array] = {}
    for cache in batch:
        members = cache.caches if isinstance(cache, CacheList) else [cache]
        for member in members:
            for name in _POSITIONS:
                value = getattr(member, name, None)
                if isinstance(value, mx.array):
                    found[id(value)] = value
    return list(found.values())


def arrays(caches: Caches) -> list[mx.array]:
    """Every array that the caches hold."""
    flat = tree_flatten([cache.state for cache in caches])
    return [value for _, value in flat if isinstance(value, mx.array)]


def nbytes(caches: Caches) -> int:
    """Bytes that the caches' arrays hold, unused room included."""
    return sum(int(cache.nbytes) for cache in caches if not cache.empty())


def token_bytes(row: Caches) -> int:
    """Bytes that each token adds to a row that holds one token; fixed state is left out."""
    total = 0
    for cache in row:
        if isinstance(cache, CacheList):
            total += token_bytes(list(cache.caches))
        elif isinstance(cache, KVCache) and cache.keys is not None:
            total += int(cache.nbytes) // cache.keys.shape[2]
    return total


def growth(caches: Caches) -> int:
    """Bytes that one more token adds: 0 while there is unused room."""
    total = 0
    for cache in caches:
        if isinstance(cache, CacheList):
            total += growth(list(cache.caches))
        elif isinstance(cache, KVCache | BatchKVCache) and cache.keys is not None:
            used, room = cache.size(), cache.keys.shape[2]
            if used + 1 > room:
                total += int(cache.nbytes) // max(1, room) * (used + cache.step - room)
    return total


def set_step(caches: Caches, step: int) -> None:
    """Let key/value caches grow by ``step`` tokens at a time, if not by fewer already."""
    for cache in caches:
        if isinstance(cache, CacheList):
            set_step(list(cache.caches), step)
        elif isinstance(cache, KVCache | BatchKVCache):
            cache.step = min(cache.step, step)


def can_trim(row: Caches) -> bool:
    """Whether the newest tokens of a row can be dropped."""
    return all(cache.is_trimmable() for cache in row)


def trim(row: Caches, count: int) -> None:
    """Drop a row's newest ``count`` tokens; only where :func:`can_trim`."""
    for cache in row:
        cache.trim(count)
