"""What the whole-prefix store holds and hands out."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Generic, TypeVar

from mlxceld.prompt_cache.key import Bucket

P = TypeVar("P")


@dataclass(eq=False, slots=True, weakref_slot=True)
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
    origin: str = "completion"
    pins: int = 0


@dataclass(frozen=True, slots=True)
class Taken(Generic[P]):
    """An entry that left the store for its adopter.

    ``matched`` tokens may be used; where the payload holds one more, the caller trims it.
    """

    payload: P
    matched: int
    entry: Entry[P]
