"""``RotatingKVCache``: the keys and values of the first few tokens and of the newest ones."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mlxceld.models.caches.adapter import CacheAdapter, check_tokens, keys_and_values_bytes
from mlxceld.models.caches.kinds import CacheKind
from mlxceld.models.caches.state import LayerState, SnapshotError, WindowState, copied


class RotatingAdapter(CacheAdapter):
    """A sliding window that overwrites its oldest token."""

    kind = CacheKind.WINDOWED

    def token_bytes(self, cache: Any) -> int:
        """See :class:`CacheAdapter`."""
        return keys_and_values_bytes(cache)

    def window(self, cache: Any) -> int | None:
        """See :class:`CacheAdapter`."""
        return int(cache.max_size)

    def capture(self, cache: Any, tokens: int) -> WindowState:
        """See :class:`CacheAdapter`."""
        check_tokens(cache, tokens)
        keys, values = (_window(cache, array) for array in (cache.keys, cache.values))
        return WindowState(keys, values, cache.offset, cache.max_size, cache.keep)

    def restore(self, cache: Any, state: LayerState) -> None:
        """See :class:`CacheAdapter`."""
        if not isinstance(state, WindowState):
            raise SnapshotError(f"a window cannot go on from a {type(state).__name__}")
        # Indexing gives a handle of its own: what is assigned through it leaves the state as it is.
        cache.keys = None if state.keys is None else state.keys[...]
        cache.values = None if state.values is None else state.values[...]
        cache.offset, cache.max_size, cache.keep = state.offset, state.max_size, state.keep
        cache._idx = 0 if state.keys is None else state.keys.shape[2]


def _window(cache: Any, array: mx.array | None) -> mx.array | None:
    """A window's keys or values in the order of their tokens, and no more than the window."""
    if array is None:
        return None
    ordered = cache._temporal_order(array)
    surplus = ordered.shape[2] - min(cache.offset, cache.max_size)
    if surplus > 0:
        # What a chunk left beyond the window: no later token looks at it.
        kept, rest = ordered[..., : cache.keep, :], ordered[..., cache.keep + surplus :, :]
        ordered = mx.concatenate([kept, rest], axis=2) if cache.keep else rest
    return copied(ordered)
