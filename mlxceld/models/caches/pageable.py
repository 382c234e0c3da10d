"""``KVCache``, and ``BatchKVCache`` that several of them become: every token's keys and values."""

from __future__ import annotations

from typing import Any

from mlx_lm.models.cache import KVCache

from mlxceld.models.caches.adapter import CacheAdapter, check_tokens, keys_and_values_bytes
from mlxceld.models.caches.kinds import CacheKind

_POSITION = ("offset", "_idx", "left_padding", "_right_padding")


class KeyValueAdapter(CacheAdapter):
    """A row's own cache."""

    kind = CacheKind.PAGEABLE

    def token_bytes(self, cache: Any) -> int:
        """See :class:`CacheAdapter`."""
        return keys_and_values_bytes(cache)

    def growth(self, cache: Any) -> int:
        """See :class:`CacheAdapter`."""
        if cache.keys is None:
            return 0
        used, room = cache.size(), cache.keys.shape[2]
        if used + 1 <= room:
            return 0
        return int(int(cache.nbytes) // max(1, room) * (used + cache.step - room))

    def set_step(self, cache: Any, step: int) -> None:
        """See :class:`CacheAdapter`."""
        cache.step = min(cache.step, step)

    def position(self, cache: Any) -> dict[str, Any]:
        """See :class:`CacheAdapter`: what a pass wrote lies behind it, and is overwritten."""
        return {name: getattr(cache, name) for name in _POSITION if hasattr(cache, name)}

    def capture(self, cache: Any, tokens: int) -> None:
        """See :class:`CacheAdapter`: its keys and values go to the block pool."""
        check_tokens(cache, tokens)


class BatchKeyValueAdapter(KeyValueAdapter):
    """The cache of several rows, padded on the left."""

    kind = CacheKind.OPAQUE
    shares_offsets = True

    def extract(self, cache: Any, index: int) -> Any:
        """See :class:`CacheAdapter`."""
        if cache.keys is None:
            # All that the row has is in the pool so far, and mlx-lm's extract expects an array.
            return KVCache()
        return cache.extract(index)
