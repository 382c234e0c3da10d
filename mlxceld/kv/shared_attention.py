"""Attention of a batch whose rows begin with blocks of the pool: one read for all who share them.

The seam to mlx-lm: its models hand new keys and values to ``cache.update_and_fetch`` and then call
the module-level ``scaled_dot_product_attention(..., cache=cache)``. :class:`SharedPrefixCache`
keeps a batch's *tails*, what comes after the blocks, and the function that :func:`install` puts in
place of mlx-lm's reads the blocks beside them. A model that does anything else with keys, values
or mask is given whole rows (``gathers``): its blocks are copied in front of the tails in each pass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models import base
from mlx_lm.models.cache import BatchKVCache

from mlxceld.kv import cpu_attention
from mlxceld.kv.row_caches import Caches
from mlxceld.kv.shared_prefix import Chain, Segment, SharedPrefix
from mlxceld.kv.softmax_kernel import SoftmaxKernel, softmax_kernel_for
from mlxceld.models.caches.registry import leaves, map_leaves

_NAME = "scaled_dot_product_attention"
_dense: Callable[..., mx.array] = base.scaled_dot_product_attention

_MOST_SCORES = 1 << 25
"""Scores against shared blocks that one layer may keep at a time; beyond, rows are gathered and
the fused kernel keeps none."""


class SharingError(RuntimeError):
    """A model's attention does not work on tails alone."""


class SharedPrefixCache(BatchKVCache):  # type: ignore[misc]
    """The tails of a batch's rows in one layer; ``offset`` counts the blocks before them too.

    Without a bound prefix, or with one that has no segment, it is mlx-lm's own batch cache.
    """

    step = 64
    """Tokens by which the tails grow: they are short, and padded for every row."""

    def __init__(self, left_padding: list[int]) -> None:
        super().__init__(left_padding)
        self.prefix: SharedPrefix | None = None
        self.layer = 0
        self.gathers = False
        self._fetched: tuple[mx.array, mx.array] | None = None

    @property
    def shares(self) -> bool:
        """Whether any row begins with blocks of the pool."""
        return bool(self.prefix)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append to the tails; returns what attention is to be called with."""
        fetched: tuple[mx.array, mx.array] = super().update_and_fetch(keys, values)
        if not self.shares:
            return fetched
        if self.gathers:
            return self.whole(*fetched)
        self._fetched = fetched
        return fetched

    def take_fetched(self) -> tuple[mx.array, mx.array] | None:
        """What was fetched last, once: kept longer, it would make the next write copy the tails."""
        fetched, self._fetched = self._fetched, None
        return fetched

    def whole(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Whole rows: each row's blocks in front of its tail, ``[rows, kv_heads, n, width]``."""
        if self.prefix is None:
            return keys, values
        prefix_keys, prefix_values = self.prefix.gathered(self.layer)
        return (
            mx.concatenate([prefix_keys, keys], axis=2),
            mx.concatenate([prefix_values, values], axis=2),
        )

    def make_mask(self, N: int, return_array: bool = False, **kwargs: Any) -> mx.array:  # noqa: N803
        """The tails' mask, or that of whole rows where those are gathered."""
        if not self.shares or self.prefix is None:
            plain: mx.array = super().make_mask(N, return_array=return_array, **kwargs)
            return plain
        if self.gathers:
            return self.whole_mask(N, **kwargs)
        if any(value is not None for value in kwargs.values()):
            raise SharingError(f"a mask with {', '.join(kwargs)} needs whole rows")
        mask: mx.array = super().make_mask(N, return_array=return_array)
        # One cache makes it for all layers; the prefix is what they have in common.
        self.prefix.tail_mask = mask
        return mask

    def whole_mask(self, count: int, window_size: int | None = None) -> mx.array:
        """What each of ``count`` new tokens sees of whole rows: bool ``[rows, 1, count, n]``."""
        prefix = self.prefix
        if prefix is None:
            raise SharingError("no prefix is bound")
        lengths = mx.array(prefix.lengths)[:, None]
        padding = self.left_padding[:, None]
        before = mx.arange(prefix.longest)[None] - (prefix.longest - lengths)
        tail = mx.arange(self._idx + count)[None]
        # Where each key stands in its row; there is none below 0 or in the tail's padding.
        places = mx.concatenate([before, tail - padding + lengths], axis=1)
        there = mx.concatenate([before >= 0, tail >= padding], axis=1)
        asking = places[:, -count:, None]
        mask = there[:, None] & (places[:, None] <= asking)
        if window_size is not None:
            mask = mask & (asking < places[:, None] + window_size)
        return mask[:, None]


def merge(rows: Sequence[Caches], tokens_before: Sequence[int]) -> Caches:
    """One batch of tails out of single rows; ``tokens_before[i]`` are in row i's blocks."""

    def merged(*column: Any) -> SharedPrefixCache:
        # Caches without a token merge into plain ones, whatever the class.
        return _shared(BatchKVCache.merge(list(column)), tokens_before)

    return [map_leaves(merged, *column) for column in zip(*rows, strict=True)]


def as_shared(batch: Caches) -> Caches:
    """The same batch in caches that can be bound; its arrays are taken over, not copied."""
    return [map_leaves(_as_shared, cache) for cache in batch]


def _as_shared(leaf: Any) -> Any:
    return leaf if isinstance(leaf, SharedPrefixCache) else _shared(leaf, None)


def _shared(cache: BatchKVCache, tokens_before: Sequence[int] | None) -> SharedPrefixCache:
    shared = SharedPrefixCache([0])
    shared.state = cache.state
    if tokens_before is not None:
        shared.offset = shared.offset + mx.array(list(tokens_before))
    return shared


def bind(batch: Caches, prefix: SharedPrefix | None, *, gathers: bool) -> None:
    """Tell a batch of tails what its rows begin with."""
    for layer, leaf in enumerate(leaves(batch)):
        leaf.prefix, leaf.layer, leaf.gathers = prefix, layer, gathers


def shares(batch: Caches) -> bool:
    """Whether any row of a batch begins with blocks of the pool."""
    return any(isinstance(leaf, SharedPrefixCache) and leaf.shares for leaf in leaves(batch))


def run(module: Any, tokens: mx.array, batch: Caches) -> mx.array:
    """One pass of a model over a batch that reads the pool; its logits.

    Raises SharingError where that fails, or where the model fetched tails that it did not read
    through :func:`attention`: its own code has seen tails where it expects whole rows. The caches
    have gone on then; see :mod:`mlxceld.kv.rewind`.
    """
    try:
        logits: mx.array = module(tokens, cache=batch)
    except SharingError:
        raise
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        raise SharingError(f"{type(error).__name__}: {first}") from error
    _check_read(batch)
    return logits


def _check_read(batch: Caches) -> None:
    unread = [
        layer
        for layer, leaf in enumerate(leaves(batch))
        if isinstance(leaf, SharedPrefixCache) and leaf.take_fetched() is not None
    ]
    if unread:
        numbers = ", ".join(map(str, unread[:4])) + (", ..." if len(unread) > 4 else "")
        raise SharingError(f"keys of cache {numbers} are not read by the attention that is shared")


def install(module: Any) -> None:
    """Let a model's attention read shared blocks, and be quicker on a CPU.

    On a GPU caches of any other kind are not affected.
    """
    names = {type(part).__module__ for part in module.modules()}
    for name in names:
        code = sys.modules.get(name)
        if code is not None and getattr(code, _NAME, None) is _dense:
            setattr(code, _NAME, attention)


def attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: mx.array | None,
    sinks: mx.array | None = None,
) -> mx.array:
    """Scaled dot-product attention, ``[rows, heads, n, width]``, in mlx-lm's own signature.

    Raises SharingError where the model has changed what the cache gave it.
    """
    shares = isinstance(cache, SharedPrefixCache) and cache.shares and not cache.gathers
    if not shares:
        if sinks is None and not hasattr(cache, "bits") and cpu_attention.pays(queries, keys, mask):
            return cpu_attention.attend(queries, keys, values, scale, mask)
        return _dense(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
    prefix: SharedPrefix = cache.prefix
    fetched = cache.take_fetched()
    if fetched is None or keys is not fetched[0] or values is not fetched[1]:
        raise SharingError("attention is called with other keys and values than the cache gave")
    if mask is None or mask is not prefix.tail_mask:
        raise SharingError("attention is called with another mask than the cache gave")
    rows, heads, count, _ = queries.shape
    if sinks is not None or rows * heads * count * prefix.longest > _MOST_SCORES:
        whole = cache.whole(keys, values)
        # The tails hold the new tokens already.
        seen = _widened(mask, prefix)
        return _dense(queries, *whole, cache=cache, scale=scale, mask=seen, sinks=sinks)
    way = softmax_kernel_for(rows * heads * count * prefix.longest, queries.dtype)
    return _shared_attention(
        queries * (scale * way.factor), keys, values, prefix, cache.layer, mask, way
    )


def _widened(mask: mx.array, prefix: SharedPrefix) -> mx.array:
    """The tails' mask with each row's blocks in front, all of which are seen."""
    rows, _, count, _ = mask.shape
    missing = prefix.longest - mx.array(prefix.lengths)
    before = mx.arange(prefix.longest)[None] >= missing[:, None]
    before = mx.broadcast_to(before[:, None, None], [rows, 1, count, prefix.longest])
    tail = mx.broadcast_to(mask, [rows, *mask.shape[1:]])
    return mx.concatenate([before, tail], axis=-1)


def _shared_attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    prefix: SharedPrefix,
    layer: int,
    mask: mx.array,
    way: SoftmaxKernel,
) -> mx.array:
    """One softmax over a row's segments and its tail; each segment is one product for its rows.

    ``queries`` are scaled already, such that scores are what ``way`` takes.
    The result is that of attention over whole rows, softmax([q K1', q K2', q Kt']) [V1; V2; Vt],
    with the division by the softmax's sum after the last product.
    """
    rows, heads, count, width = queries.shape
    kv_heads = keys.shape[1]
    asking = queries.reshape(rows, kv_heads, -1, width)
    each = asking.shape[2]  # queries of a row that read the same key head
    by_head = asking.transpose(1, 0, 2, 3)
    tail = (asking @ keys.swapaxes(-1, -2)).reshape(rows, kv_heads, each // count, count, -1)
    tail = (tail + _bias(mask, tail.dtype)).reshape(rows, kv_heads, each, -1)
    tail = tail.transpose(1, 0, 2, 3)

    views = [prefix.views(layer, index) for index in range(len(prefix.segments))]
    scores = []
    for segment, parts in zip(prefix.segments, views, strict=True):
        members = segment.last - segment.first
        mine = by_head[:, segment.first : segment.last].reshape(kv_heads, members * each, width)
        products = [mine @ k.swapaxes(-1, -2) for k, _ in parts]
        joined = mx.concatenate(products, axis=-1) if len(products) > 1 else products[0]
        scores.append(joined.reshape(kv_heads, members, each, -1))

    weights, sums = [], []
    for chain in prefix.chains:
        pieces = [_of_chain(scores[i], prefix.segments[i], chain) for i in chain.segments]
        exponentials, total = way.of([*pieces, tail[:, chain.first : chain.last]])
        weights.append([piece.astype(values.dtype) for piece in exponentials])
        sums.append(total)
    result = _joined(
        [
            (own[-1].transpose(1, 0, 2, 3) @ values[chain.first : chain.last])
            for chain, own in zip(prefix.chains, weights, strict=True)
        ],
        axis=0,
    ).transpose(1, 0, 2, 3)
    for index, segment in enumerate(prefix.segments):
        members = segment.last - segment.first
        shares = [
            own[chain.segments.index(index)]
            for chain, own in zip(prefix.chains, weights, strict=True)
            if index in chain.segments
        ]
        wanted = _joined(shares, axis=1).reshape(kv_heads, members * each, -1)
        read = _product(wanted, [v for _, v in views[index]])
        read = read.reshape(kv_heads, members, each, -1)
        result = _added(result, read, segment.first, segment.last)
    result = (result / _joined(sums, axis=1)).astype(queries.dtype)
    return result.transpose(1, 0, 2, 3).reshape(rows, heads, count, -1)


def _bias(mask: mx.array, dtype: mx.Dtype) -> mx.array:
    """A bool mask ``[rows, 1, count, n]`` as numbers to add, with an axis for grouped heads."""
    hidden = mx.array(mx.finfo(dtype).min, dtype)
    return mx.where(mask, mx.array(0, dtype), hidden)[:, :, None]


def _of_chain(scores: mx.array, segment: Segment, chain: Chain) -> mx.array:
    """The part of a segment's scores that belongs to a chain's rows, the second axis."""
    if (segment.first, segment.last) == (chain.first, chain.last):
        return scores
    return scores[:, chain.first - segment.first : chain.last - segment.first]


def _product(weights: mx.array, values: Sequence[mx.array]) -> mx.array:
    """``weights`` times values that lie in several pieces, at least one."""
    if len(values) == 1:
        return weights @ values[0]
    at, total = 0, None
    for piece in values:
        part = weights[..., at : at + piece.shape[1]] @ piece
        total = part if total is None else total + part
        at += piece.shape[1]
    if total is None:
        raise ValueError("values: expected at least one piece")
    return total


def _joined(pieces: Sequence[mx.array], axis: int) -> mx.array:
    return mx.concatenate(list(pieces), axis=axis) if len(pieces) > 1 else pieces[0]


def _added(whole: mx.array, part: mx.array, first: int, last: int) -> mx.array:
    """``whole`` with ``part`` added to its rows ``first`` to ``last``; rows are the second axis."""
    if first == 0 and last == whole.shape[1]:
        return whole + part
    pieces = [whole[:, :first], whole[:, first:last] + part, whole[:, last:]]
    return _joined([piece for piece in pieces if piece.shape[1]], axis=1)
