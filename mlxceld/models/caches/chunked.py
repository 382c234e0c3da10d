"""``ChunkedKVCache``: the keys and values of the chunk of tokens that attention looks at."""

from __future__ import annotations

from typing import Any

from mlxceld.models.caches.adapter import CacheAdapter, check_tokens, keys_and_values_bytes
from mlxceld.models.caches.kinds import CacheKind
from mlxceld.models.caches.state import ChunkState, LayerState, SnapshotError, copied


class ChunkedAdapter(CacheAdapter):
    """What lies before the chunk is cut off as prompts go on."""

    kind = CacheKind.WINDOWED

    def token_bytes(self, cache: Any) -> int:
        """See :class:`CacheAdapter`."""
        return keys_and_values_bytes(cache)

    def window(self, cache: Any) -> int | None:
        """See :class:`CacheAdapter`."""
        return int(cache.chunk_size)

    def capture(self, cache: Any, tokens: int) -> ChunkState:
        """See :class:`CacheAdapter`."""
        check_tokens(cache, tokens)
        held = cache.offset - cache.start_position
        keys, values = (
            None if array is None else copied(array[..., :held, :])
            for array in (cache.keys, cache.values)
        )
        return ChunkState(keys, values, cache.offset, cache.chunk_size, cache.start_position)

    def restore(self, cache: Any, state: LayerState) -> None:
        """See :class:`CacheAdapter`."""
        if not isinstance(state, ChunkState):
            raise SnapshotError(f"a chunk cannot go on from a {type(state).__name__}")
        # Indexing gives a handle of its own: what is assigned through it leaves the state as it is.
        cache.keys = None if state.keys is None else state.keys[...]
        cache.values = None if state.values is None else state.values[...]
        cache.offset, cache.chunk_size = state.offset, state.chunk_size
        cache.start_position = state.start
