"""The caches of one sequence alone, and how they join, leave and fill the caches of a batch.

A *row* is the list of caches that mlx-lm's ``make_prompt_cache`` gives a single sequence; a
*batch* is the list of their batched counterparts. Everything here works on whole lists and never
looks at which model they belong to.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from mlxceld.models.caches.kinds import CacheKind
from mlxceld.models.caches.registry import adapter_of, leaves, map_leaves

log = logging.getLogger(__name__)

Caches = list[Any]

_POSITIONS = ("offset", "left_padding", "lengths")
"""What mlx-lm's batched caches call their arrays of one number a row."""


def new_row(module: Any) -> Caches:
    """Empty caches for one sequence."""
    return list(make_prompt_cache(module))


def can_merge(row: Caches) -> bool:
    """Whether every cache of a row has a batched counterpart."""
    return all(adapter_of(leaf).can_merge(leaf) for leaf in leaves(row))


def merge(rows: Sequence[Caches]) -> Caches:
    """One batch out of single rows, in their order; the rows' arrays are copied."""
    return [column[0].merge(list(column)) for column in zip(*rows, strict=True)]


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
        adapter_of(mine).fit(mine, theirs)
        for mine, theirs in zip(leaves(one), leaves(other), strict=True)
        if type(mine) is type(theirs)
    )


def keep_rows(batch: Caches, indices: Sequence[int]) -> None:
    """Reduce a batch to the rows at ``indices``, at least one."""
    wanted = list(indices)
    for cache in batch:
        cache.filter(wanted)


def extract(batch: Caches, index: int) -> Caches:
    """A copy of one row of a batch, which pins nothing of the batch's arrays."""
    return [map_leaves(lambda leaf: adapter_of(leaf).extract(leaf, index), c) for c in batch]


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
    first: Any = None
    for cache in batch:
        if not adapter_of(cache).shares_offsets:
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
    for leaf in leaves(batch):
        for name in _POSITIONS:
            value = getattr(leaf, name, None)
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
    return sum(
        adapter_of(leaf).token_bytes(leaf)
        for leaf in leaves(row)
        if adapter_of(leaf).kind is CacheKind.PAGEABLE
    )


def growth(caches: Caches) -> int:
    """Bytes that one more token adds: 0 while there is unused room."""
    return sum(adapter_of(leaf).growth(leaf) for leaf in leaves(caches))


def set_step(caches: Caches, step: int) -> None:
    """Let key/value caches grow by ``step`` tokens at a time, if not by fewer already."""
    for leaf in leaves(caches):
        adapter_of(leaf).set_step(leaf, step)


def can_trim(row: Caches) -> bool:
    """Whether the newest tokens of a row can be dropped."""
    return all(cache.is_trimmable() for cache in row)


def trim(row: Caches, count: int) -> None:
    """Drop a row's newest ``count`` tokens; only where :func:`can_trim`."""
    for cache in row:
        cache.trim(count)
