"""``ArraysCache``: a few arrays that have read everything, as recurrent layers keep them."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from mlxceld.models.caches.adapter import CacheAdapter, array_bytes
from mlxceld.models.caches.kinds import CacheKind
from mlxceld.models.caches.state import LayerState, RecurrentState, SnapshotError, copied


class ArraysAdapter(CacheAdapter):
    """One class for a row and for a batch, whose arrays have a row each."""

    kind = CacheKind.RECURRENT

    def fixed_bytes(self, cache: Any) -> int:
        """See :class:`CacheAdapter`."""
        return array_bytes(cache.cache)

    def fit(self, one: Any, other: Any) -> bool:
        """See :class:`CacheAdapter`: states have to agree in all but their number of rows.

        mlx-lm's merge would repeat a shorter state to the length of a longer one.
        """
        return all(
            a is None or b is None or a.shape[1:] == b.shape[1:]
            for a, b in zip(one.cache, other.cache, strict=True)
        )

    def extract(self, cache: Any, index: int) -> Any:
        """See :class:`CacheAdapter`."""
        # mlx-lm's own slices a view, which would keep the whole batch's array alive (and so would
        # mx.contiguous, for small arrays), and fails on a slot that was never written.
        alone = ArraysCache(len(cache.cache))
        for slot, array in enumerate(cache.cache):
            if array is not None:
                alone[slot] = mx.take(array, mx.array([index]), axis=0)
        return alone

    def capture(self, cache: Any, tokens: int) -> RecurrentState:
        """See :class:`CacheAdapter`; it does not tell how many tokens it has read."""
        return RecurrentState(tuple(None if a is None else copied(a) for a in cache.cache))

    def restore(self, cache: Any, state: LayerState) -> None:
        """See :class:`CacheAdapter`."""
        if not isinstance(state, RecurrentState):
            raise SnapshotError(f"a recurrent layer cannot go on from a {type(state).__name__}")
        for slot, array in enumerate(state.slots):
            cache[slot] = None if array is None else array[...]
