"""What kind of cache each layer of a model keeps, which decides how its past can be reused."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
)


class CacheKind(enum.StrEnum):
    """How a layer remembers.

    *Pageable* keeps every token's keys and values, so any prefix can be taken from it; *windowed*
    keeps the newest ones only; *recurrent* keeps one state that has read everything; *composite*
    holds several caches of different kinds; *opaque* is a class of the model's own.
    """

    PAGEABLE = "pageable"
    WINDOWED = "windowed"
    RECURRENT = "recurrent"
    COMPOSITE = "composite"
    OPAQUE = "opaque"


def kind_of(cache: Any) -> CacheKind:
    """The kind of one cache object as ``make_prompt_cache`` gives it.

    Judged by exact class: a subclass may keep its past in another way. A ``CacheList`` whose
    members are all of one kind is of that kind.
    """
    kinds: dict[type, CacheKind] = {
        KVCache: CacheKind.PAGEABLE,
        RotatingKVCache: CacheKind.WINDOWED,
        ChunkedKVCache: CacheKind.WINDOWED,
        ArraysCache: CacheKind.RECURRENT,
    }
    if type(cache) is CacheList:
        members = {kind_of(member) for member in cache.caches}
        return members.pop() if len(members) == 1 else CacheKind.COMPOSITE
    return kinds.get(type(cache), CacheKind.OPAQUE)


def classify(caches: Sequence[Any]) -> list[CacheKind]:
    """The kind of each cache of a model, in the model's order.

    The list is the model's, not one item a layer: models share caches between layers, or keep
    none for layers without attention.
    """
    return [kind_of(cache) for cache in caches]


def count_kinds(kinds: Sequence[CacheKind]) -> dict[str, int]:
    """How many caches there are of each kind that occurs, most frequent first."""
    return {kind.value: count for kind, count in Counter(kinds).most_common()}
