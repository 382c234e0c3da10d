"""Which adapter a cache has: by its class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
)

from mlxceld.models.caches.adapter import CacheAdapter
from mlxceld.models.caches.chunked import ChunkedAdapter
from mlxceld.models.caches.composite import CompositeAdapter
from mlxceld.models.caches.kinds import CacheKind
from mlxceld.models.caches.pageable import BatchKeyValueAdapter, KeyValueAdapter
from mlxceld.models.caches.recurrent import ArraysAdapter
from mlxceld.models.caches.windowed import RotatingAdapter

ADAPTERS: Mapping[type, CacheAdapter] = {
    KVCache: KeyValueAdapter(),
    BatchKVCache: BatchKeyValueAdapter(),
    RotatingKVCache: RotatingAdapter(),
    ChunkedKVCache: ChunkedAdapter(),
    ArraysCache: ArraysAdapter(),
    CacheList: CompositeAdapter(),
}
"""One line a class."""

_UNKNOWN = CacheAdapter()


def adapter_of(cache: Any) -> CacheAdapter:
    """The adapter of a cache's class, else of the nearest class that it inherits from."""
    kinds = type(cache).__mro__
    return next((ADAPTERS[kind] for kind in kinds if kind in ADAPTERS), _UNKNOWN)


def is_registered(cache: Any) -> bool:
    """Whether exactly this class has an adapter: a subclass may keep its past in another way."""
    return type(cache) in ADAPTERS


def kind_of(cache: Any) -> CacheKind:
    """The kind of one cache object as ``make_prompt_cache`` gives it.

    Judged by exact class. A composite one whose members are all of one kind is of that kind.
    """
    if not is_registered(cache):
        return CacheKind.OPAQUE
    adapter = adapter_of(cache)
    members = {kind_of(member) for member in adapter.members(cache)}
    return members.pop() if len(members) == 1 else adapter.kind


def leaves(caches: Sequence[Any]) -> Iterator[Any]:
    """The caches of a row or a batch in order, with those inside composite ones in their place."""
    for cache in caches:
        adapter = adapter_of(cache)
        if adapter.kind is CacheKind.COMPOSITE:
            yield from leaves(adapter.members(cache))
        else:
            yield cache


def map_leaves(change: Callable[..., Any], *caches: Any) -> Any:
    """``change`` of caches that are built alike, leaf by leaf; composite ones are built anew."""
    adapter = adapter_of(caches[0])
    if adapter.kind is not CacheKind.COMPOSITE:
        return change(*caches)
    members = [adapter_of(cache).members(cache) for cache in caches]
    return adapter.with_members(
        [map_leaves(change, *inner) for inner in zip(*members, strict=True)]
    )


def classify(caches: Sequence[Any]) -> list[CacheKind]:
    """The kind of each cache of a model, in the model's order.

    The list is the model's, not one item a layer: models share caches between layers, or keep
    none for layers without attention.
    """
    return [kind_of(cache) for cache in caches]


def count_kinds(kinds: Sequence[CacheKind]) -> dict[str, int]:
    """How many caches there are of each kind that occurs, most frequent first."""
    return {kind.value: count for kind, count in Counter(kinds).most_common()}
