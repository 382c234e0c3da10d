"""What has to be known of a class of caches, and what holds of one of which nothing is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mlxceld.models.caches.kinds import CacheKind
from mlxceld.models.caches.state import LayerState, SnapshotError


class CacheAdapter:
    """Base of the adapters, and the adapter of every class that is not registered.

    An adapter holds nothing: each method is given the cache, of one row or of a batch.
    """

    kind = CacheKind.OPAQUE
    shares_offsets = False
    """Whether a batch's caches of the class that have seen the same may have one offset array."""

    def members(self, cache: Any) -> Sequence[Any]:
        """The caches that a composite one holds; none for any other."""
        return ()

    def with_members(self, members: Sequence[Any]) -> Any:
        """A composite cache of these members."""
        raise TypeError("it holds no other caches")

    def can_merge(self, cache: Any) -> bool:
        """Whether it has a batched counterpart."""
        return hasattr(cache, "merge")

    def fit(self, one: Any, other: Any) -> bool:
        """Whether two of the class can be rows of one batch."""
        return True

    def extract(self, cache: Any, index: int) -> Any:
        """A copy of one row of a batch's cache, which pins nothing of the batch's arrays."""
        return cache.extract(index)

    def token_bytes(self, cache: Any) -> int:
        """Bytes a token, read off a cache that holds one at least; 0 where there is no such."""
        return 0

    def fixed_bytes(self, cache: Any) -> int:
        """Bytes that do not grow with the tokens."""
        return 0

    def window(self, cache: Any) -> int | None:
        """How many tokens are kept at most; None for all of them."""
        return None

    def growth(self, cache: Any) -> int:
        """Bytes that one more token adds: 0 while there is unused room."""
        return 0

    def set_step(self, cache: Any, step: int) -> None:
        """Let it grow by ``step`` tokens at a time, if not by fewer already."""

    def position(self, cache: Any) -> dict[str, Any]:
        """What has to be restored to take a pass back; raises TypeError where that is not all."""
        raise TypeError(f"{type(cache).__name__} does not keep every token's keys and values")

    def capture(self, cache: Any, tokens: int) -> LayerState | None:
        """The state of a row's cache after ``tokens`` tokens, to be evaluated.

        None for one whose keys and values are kept elsewhere. Raises SnapshotError if the cache
        holds another number of tokens, or nothing is known of it.
        """
        raise SnapshotError(f"nothing is known of how {type(cache).__name__} keeps its past")

    def restore(self, cache: Any, state: LayerState) -> None:
        """Put a state into an empty cache. The state's arrays stay what they are, whatever the
        model writes into the cache.
        """
        raise SnapshotError(f"nothing is known of how {type(cache).__name__} keeps its past")


def array_bytes(tree: Any) -> int:
    """Bytes of all arrays in a tree of lists and dicts."""
    flat = tree_flatten(list(tree))
    return sum(int(value.nbytes) for _, value in flat if isinstance(value, mx.array))


def keys_and_values_bytes(cache: Any) -> int:
    """Bytes a token of a cache with keys and values ``[rows, kv_heads, room, width]``."""
    # Room is made for many tokens at once.
    held = (array for array in (cache.keys, cache.values) if array is not None)
    return sum(array.nbytes // array.shape[2] for array in held)


def check_tokens(cache: Any, tokens: int) -> None:
    """Raise SnapshotError for a cache that holds another number of tokens."""
    if cache.offset != tokens:
        raise SnapshotError(
            f"a {type(cache).__name__} holds {cache.offset} tokens, expected {tokens}"
        )
