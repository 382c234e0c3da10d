"""What the store of snapshots holds and hands out."""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass
from typing import Generic, TypeVar

from mlxceld.prompt_cache.key import Bucket

P = TypeVar("P")


class Origin(enum.StrEnum):
    """Where in a conversation a snapshot was taken.

    *Head*: after system text and tools; *boundary*: after the history, before the generation
    prompt; *prefetch*: after a history that was rendered ahead of its next turn; *completion*:
    after an answer.
    """

    HEAD = "head"
    BOUNDARY = "boundary"
    PREFETCH = "prefetch"
    COMPLETION = "completion"


OUTDATES: dict[Origin, tuple[Origin, ...]] = {
    Origin.HEAD: (Origin.HEAD,),
    # The next turn's boundary goes beyond what was prefetched for that turn.
    Origin.BOUNDARY: (Origin.BOUNDARY, Origin.PREFETCH),
    Origin.PREFETCH: (Origin.PREFETCH,),
    Origin.COMPLETION: (Origin.COMPLETION,),
}
"""Which snapshots of its session, of fewer of the same tokens, one of an origin makes useless."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class SnapshotEntry(Generic[P]):
    """One stored state after ``tokens``.

    ``state`` is the caller's, of ``state_bytes`` real bytes; ``table`` names the pool's blocks that
    hold the keys and values of pageable layers, and is empty where there are none. Times are
    readings of the store's clock; ``hits`` counts adoptions. ``session`` is empty for what no
    session stored.
    """

    bucket: Bucket
    session: str
    tokens: array[int]
    origin: Origin
    state: P
    state_bytes: int
    table: tuple[int, ...]
    created: float
    last_used: float
    hits: int = 0
    client: str | None = None
    pins: int = 0
