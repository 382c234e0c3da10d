"""What is taken out of a cache to be put into another one later."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx


class SnapshotError(ValueError):
    """A cache is not what a state can be taken of."""


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


def arrays_of(state: LayerState) -> list[mx.array]:
    """A state's arrays, each in memory of its own."""
    held = state.slots if isinstance(state, RecurrentState) else (state.keys, state.values)
    return [array for array in held if array is not None]


def copied(array: mx.array) -> mx.array:
    """An array's values in memory of their own, once evaluated."""
    # mx.contiguous keeps a view where it is contiguous already. Joined with nothing, it is copied.
    return mx.concatenate([array, array[:0]], axis=0)
