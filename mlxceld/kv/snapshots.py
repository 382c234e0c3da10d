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

from mlxceld.kv import row_caches
from mlxceld.kv.row_caches import Caches
from mlxceld.kv.slabs import KeysAndValues
from mlxceld.models.caches.kinds import CacheKind
from mlxceld.models.caches.registry import adapter_of, is_registered, kind_of, leaves
from mlxceld.models.caches.state import LayerState, SnapshotError, arrays_of


@dataclass(frozen=True, slots=True)
class RowState:
    """The state after ``tokens`` tokens, one item a leaf of the caches.

    None stands for a pageable leaf, whose keys and values are elsewhere.
    """

    tokens: int
    layers: tuple[LayerState | None, ...]

    def arrays(self) -> list[mx.array]:
        """Every array, each in memory of its own."""
        return [array for layer in self.layers if layer for array in arrays_of(layer)]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(array.nbytes) for array in self.arrays())


def pageable(row: Caches) -> list[Any]:
    """The leaves whose keys and values go to the block pool."""
    return [leaf for leaf in leaves(row) if kind_of(leaf) is CacheKind.PAGEABLE]


def unsupported_reason(row: Caches) -> str:
    """Why no snapshot of such a row can be taken; empty if it can.

    Judged by exact class: a subclass may keep its past in another way.
    """
    strange = sorted({type(leaf).__name__ for leaf in leaves(row) if not is_registered(leaf)})
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
            adapter_of(leaf).restore(leaf, layer)
    return row


def _state_of(leaf: Any, tokens: int) -> LayerState | None:
    if not is_registered(leaf):
        raise SnapshotError(f"nothing is known of how {type(leaf).__name__} keeps its past")
    return adapter_of(leaf).capture(leaf, tokens)
