"""A row's state, taken out of its caches and put into new ones.

What a cache holds is never kept: it is copied into arrays of their own, evaluated at once. A model
writes into its cache's arrays, and a slice keeps all of what it was cut from. Keys and values of
pageable layers are not in here; they go to the block pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
)

from mlxceld.kv import row_caches
from mlxceld.kv.row_caches import Caches, leaves
from mlxceld.kv.slabs import KeysAndValues


class SnapshotError(ValueError):
    """A row's caches are not what a snapshot can be taken of."""


@dataclass(frozen=True, slots=True)
class WindowState:
    """A sliding window: keys and values ``[1, kv_heads, n, width]``, the oldest token first.

    Of ``offset`` tokens the first ``keep`` and the newest are there, ``max_size`` at most.
    """

    keys: mx.array | None
    values: mx.array | None
    offset: int
    max_size: int
    keep: int


@dataclass(frozen=True, slots=True)
class ChunkState:
    """Attention in chunks: keys and values of the tokens from ``start`` to ``offset``."""

    keys: mx.array | None
    values: mx.array | None
    offset: int
    chunk_size: int
    start: int


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """A state that has read everything; slots that were never written are None."""

    slots: tuple[mx.array | None, ...]


LayerState = WindowState | ChunkState | RecurrentState


@dataclass(frozen=True, slots=True)
class RowState:
    """The state after ``tokens`` tokens, one item a leaf of the caches.

    None stands for a pageable leaf, whose keys and values are elsewhere.
    """

    tokens: int
    layers: tuple[LayerState | None, ...]

    def arrays(self) -> list[mx.array]:
        """Every array, each in memory of its own."""
        found: list[mx.array | None] = []
        for layer in self.layers:
            if isinstance(layer, RecurrentState):
                found += layer.slots
            elif layer is not None:
                found += (layer.keys, layer.values)
        return [array for array in found if array is not None]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(array.nbytes) for array in self.arrays())


def pageable(row: Caches) -> list[KVCache]:
    """The leaves whose keys and values go to the block pool."""
    return [leaf for leaf in leaves(row) if type(leaf) is KVCache]


def obstacle(row: Caches) -> str:
    """Why no snapshot of such a row can be taken; empty if it can.

    Judged by exact class: a subclass may keep its past in another way.
    """
    known = (KVCache, RotatingKVCache, ChunkedKVCache, ArraysCache)
    strange = sorted({type(leaf).__name__ for leaf in leaves(row) if type(leaf) not in known})
    return f"nothing is known of how {', '.join(strange)} keeps its past" if strange else ""


def capture(row: Caches, tokens: int) -> RowState:
    """The state of a row that holds ``tokens`` tokens, evaluated; the row stays as it is.

    Raises SnapshotError if a cache holds another number of tokens, or is of a kind that nothing is
    known of.
    """
    state = RowState(tokens, tuple(_state_of(leaf, tokens) for leaf in leaves(row)))
    mx.eval(state.arrays())
    return state


def restore(module: Any, state: RowState, layers: Sequence[KeysAndValues]) -> Caches:
    """New caches of a model in a state; ``layers`` are the pageable leaves' keys and values.

    These arrays become the caches' own. Those of the state stay what they are, whatever the model
    writes into the caches.
    """
    row = row_caches.new_row(module)
    paged = iter(layers)
    for leaf, layer in zip(leaves(row), state.layers, strict=True):
        if layer is None:
            leaf.keys, leaf.values = next(paged)
            leaf.offset = state.tokens
        else:
            _restore_leaf(leaf, layer)
    return row


def copied(array: mx.array) -> mx.array:
    """An array's values in memory of their own, once evaluated."""
    # mx.contiguous keeps a view where it is contiguous already. Joined with nothing, it is copied.
    return mx.concatenate([array, array[:0]], axis=0)


def _state_of(leaf: Any, tokens: int) -> LayerState | None:
    if type(leaf) is ArraysCache:
        return RecurrentState(tuple(None if a is None else copied(a) for a in leaf.cache))
    if type(leaf) not in (KVCache, RotatingKVCache, ChunkedKVCache):
        raise SnapshotError(f"nothing is known of how {type(leaf).__name__} keeps its past")
    if leaf.offset != tokens:
        raise SnapshotError(
            f"a {type(leaf).__name__} holds {leaf.offset} tokens, expected {tokens}"
        )
    if type(leaf) is KVCache:
        return None
    if type(leaf) is RotatingKVCache:
        keys, values = (_window(leaf, array) for array in (leaf.keys, leaf.values))
        return WindowState(keys, values, leaf.offset, leaf.max_size, leaf.keep)
    held = leaf.offset - leaf.start_position
    keys, values = (
        None if array is None else copied(array[..., :held, :])
        for array in (leaf.keys, leaf.values)
    )
    return ChunkState(keys, values, leaf.offset, leaf.chunk_size, leaf.start_position)


def _window(leaf: RotatingKVCache, array: mx.array | None) -> mx.array | None:
    """A window's keys or values in the order of their tokens, and no more than the window."""
    if array is None:
        return None
    ordered = leaf._temporal_order(array)
    surplus = ordered.shape[2] - min(leaf.offset, leaf.max_size)
    if surplus > 0:
        # What a chunk left beyond the window: no later token looks at it.
        kept, rest = ordered[..., : leaf.keep, :], ordered[..., leaf.keep + surplus :, :]
        ordered = mx.concatenate([kept, rest], axis=2) if leaf.keep else rest
    return copied(ordered)


def _restore_leaf(leaf: Any, layer: LayerState) -> None:
    if isinstance(layer, RecurrentState):
        for slot, array in enumerate(layer.slots):
            leaf[slot] = None if array is None else array[...]
        return
    # Indexing gives a handle of its own: what is assigned through it leaves the state as it is.
    leaf.keys = None if layer.keys is None else layer.keys[...]
    leaf.values = None if layer.values is None else layer.values[...]
    leaf.offset = layer.offset
    if isinstance(layer, ChunkState):
        leaf.chunk_size, leaf.start_position = layer.chunk_size, layer.start
    else:
        leaf.max_size, leaf.keep = layer.max_size, layer.keep
        leaf._idx = 0 if layer.keys is None else layer.keys.shape[2]
