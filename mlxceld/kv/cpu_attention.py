"""Attention over whole rows where there is no GPU, and with it no fused kernel.

MLX computes scaled dot-product attention on a CPU as products and a softmax that is slower than
it has to be. And it computes the half of a causal chunk's scores that the mask hides; here queries
go in tiles that leave most of it out.
"""

from __future__ import annotations

import mlx.core as mx

from mlxceld.kv.softmax_kernel import SoftmaxKernel, softmax_kernel_for

_TILE = 128

_LEAST_SCORES = 4096
"""Scores a head, over all rows, below which MLX's own way is as quick."""


def pays(queries: mx.array, keys: mx.array, mask: mx.array | str | None) -> bool:
    """Whether :func:`attend` can be used and is quicker: on a CPU, in float32, with much to do."""
    known = mask in (None, "causal") if isinstance(mask, str | None) else mask.ndim == 4
    rows, _, count, _ = queries.shape
    return (
        known
        and queries.dtype == mx.float32
        and rows * count * keys.shape[2] >= _LEAST_SCORES
        and mx.default_device() == mx.cpu
    )


def attend(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    scale: float,
    mask: mx.array | str | None,
) -> mx.array:
    """softmax(q k' scale + mask) v, ``[rows, heads, n, width]``, for grouped key heads.

    ``mask`` is None, "causal" (the last query sees all keys), or four-dimensional, bool (what is
    seen) or numbers to add, with one head for all or one a head of the queries (latent attention
    adds a part of its scores so).
    """
    count, tokens = queries.shape[2], keys.shape[2]
    tile = count if mask is None or isinstance(mask, mx.array) else min(count, _TILE)
    scores = queries.shape[0] * queries.shape[1] * tile * tokens
    way = softmax_kernel_for(scores, queries.dtype)
    queries = queries * (scale * way.factor)
    if mask is None or isinstance(mask, mx.array) or count == 1:
        whole = None if isinstance(mask, str) else mask
        return _attend(queries, keys, values, whole, way)
    outputs = []
    for start in range(0, count, _TILE):
        stop = min(start + _TILE, count)
        seen = tokens - count + stop
        places = mx.arange(seen - (stop - start), seen)[:, None]
        hidden = (places >= mx.arange(seen)[None])[None, None]
        asking = queries[:, :, start:stop]
        outputs.append(_attend(asking, keys[:, :, :seen], values[:, :, :seen], hidden, way))
    return mx.concatenate(outputs, axis=2) if len(outputs) > 1 else outputs[0]


def _attend(
    queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | None, way: SoftmaxKernel
) -> mx.array:
    """Attention of queries that are scaled already."""
    rows, heads, count, width = queries.shape
    kv_heads = keys.shape[1]
    asking = queries.reshape(rows, kv_heads, -1, width)
    scores = asking @ keys.swapaxes(-1, -2)
    if mask is not None:
        grouped = scores.reshape(rows, kv_heads, heads // kv_heads, count, -1)
        scores = (grouped + _bias(mask, kv_heads, way)).reshape(scores.shape)
    (weights,), total = way.of([scores])
    return ((weights @ values) / total).reshape(rows, heads, count, -1)


def _bias(mask: mx.array, kv_heads: int, way: SoftmaxKernel) -> mx.array:
    """A mask as numbers to add to scaled scores, its heads grouped by key heads."""
    if mask.dtype == mx.bool_:
        hidden = mx.array(mx.finfo(mx.float32).min, mx.float32)
        mask = mx.where(mask, mx.array(0.0, mx.float32), hidden)
    else:
        mask = mask * way.factor
    rows, heads, count, tokens = mask.shape
    return mask[:, :, None] if heads == 1 else mask.reshape(rows, kv_heads, -1, count, tokens)
