"""What a store of prefixes counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Lifetime counts; a flush does not reset them.

    ``inserts`` equals the entries present plus all that left: evicted, consumed, replaced,
    superseded.
    """

    lookups: int = 0
    hits: int = 0
    misses: int = 0
    inserts: int = 0
    consumed: int = 0
    replaced: int = 0
    supersedes: int = 0
    evictions_lru: int = 0
    evictions_ttl: int = 0
    evictions_flush: int = 0
    evictions_resize: int = 0
    rejections_oversized: int = 0

    @property
    def left(self) -> int:
        """How many entries have left, for whatever reason."""
        return (
            self.consumed
            + self.replaced
            + self.supersedes
            + self.evictions_lru
            + self.evictions_ttl
            + self.evictions_flush
            + self.evictions_resize
        )
