"""What the whole-prefix store holds, hands out and counts."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Generic, TypeVar

from mlxceld.prompt_cache.key import Bucket

P = TypeVar("P")


@dataclass(eq=False, slots=True)
class Entry(Generic[P]):
    """One stored prefix. ``created`` and ``last_used`` are readings of the store's clock.

    ``payload`` is the caller's; ``can_trim`` says that the caller can cut its last token off.
    ``hits`` counts the adoptions of the chain that this entry goes on with.
    """

    bucket: Bucket
    session: str
    tokens: array[int]
    payload: P
    nbytes: int
    created: float
    last_used: float
    can_trim: bool = False
    hits: int = 0
    client: str | None = None


@dataclass(frozen=True, slots=True)
class Taken(Generic[P]):
    """An entry that left the store for its adopter.

    ``matched`` tokens may be used; where the payload holds one more, the caller trims it.
    """

    payload: P
    matched: int
    entry: Entry[P]


@dataclass(slots=True)
class Counters:
    """Lifetime counts; a flush does not reset them.

    ``inserts`` equals the entries present plus all that left: evicted, consumed, replaced.
    """

    lookups: int = 0
    hits: int = 0
    misses: int = 0
    inserts: int = 0
    consumed: int = 0
    replaced: int = 0
    evictions_lru: int = 0
    evictions_ttl: int = 0
    evictions_flush: int = 0
    evictions_resize: int = 0
    rejections_oversized: int = 0
