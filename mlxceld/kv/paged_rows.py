"""Between a row's caches and the block pool, for models all of whose caches are pageable.

The pool knows layers as a flat list; a model's cache list may nest several caches in one item.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mlxceld.kv import row_caches
from mlxceld.kv.row_caches import Caches
from mlxceld.kv.slabs import KeysAndValues, LayerShape, copied
from mlxceld.models.caches.kinds import CacheKind
from mlxceld.models.caches.registry import kind_of, leaves


def pageable_leaves(row: Caches) -> list[Any]:
    """The key/value caches of a row in order; raises TypeError for any other kind."""
    found = list(leaves(row))
    for leaf in found:
        if kind_of(leaf) is not CacheKind.PAGEABLE:
            raise TypeError(f"{type(leaf).__name__} does not keep every token's keys and values")
    return found


def layer_shapes(row: Caches) -> list[LayerShape]:
    """What the pool has to hold for each layer, read off a row that holds a token at least."""
    shapes = []
    for leaf in pageable_leaves(row):
        keys, values = leaf.keys, leaf.values
        shapes.append(
            LayerShape(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, values.dtype)
        )
    return shapes


def keys_and_values(row: Caches) -> list[KeysAndValues]:
    """Each layer's keys and values ``[1, kv_heads, n, width]``, with unused room at the end."""
    return [(leaf.keys, leaf.values) for leaf in pageable_leaves(row)]


def tail_of(module: Any, row: Caches, first: int) -> Caches:
    """New caches with a row's tokens from ``first`` on, evaluated, in memory of their own."""
    layers = []
    for leaf in pageable_leaves(row):
        keys, values = leaf.keys[0, :, first : leaf.offset], leaf.values[0, :, first : leaf.offset]
        layers.append((copied([keys])[None], copied([values])[None]))
        tokens = leaf.offset - first
    mx.eval(layers)
    return row_of(module, layers, tokens)


def joined(module: Any, layers: Sequence[KeysAndValues], tail: Caches) -> Caches:
    """New caches with a row's beginning, ``[1, kv_heads, n, width]`` a layer, and its tail."""
    whole = []
    tokens = 0
    for (keys, values), leaf in zip(layers, pageable_leaves(tail), strict=True):
        tokens = keys.shape[2]
        if not leaf.empty():
            tokens += leaf.offset
            keys = mx.concatenate([keys, leaf.keys[:, :, : leaf.offset]], axis=2)
            values = mx.concatenate([values, leaf.values[:, :, : leaf.offset]], axis=2)
        whole.append((keys, values))
    mx.eval(whole)
    return row_of(module, whole, tokens)


def row_of(module: Any, layers: Sequence[KeysAndValues], tokens: int) -> Caches:
    """New caches for a model that hold ``tokens`` tokens: the given arrays themselves."""
    row = row_caches.new_row(module)
    for leaf, (keys, values) in zip(pageable_leaves(row), layers, strict=True):
        leaf.keys, leaf.values, leaf.offset = keys, values, tokens
    return row
