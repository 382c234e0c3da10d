"""What may be told of a stored entry: its size and its use, nothing of its text."""

from __future__ import annotations

from dataclasses import dataclass

from mlxceld.prompt_cache.key import session_hash
from mlxceld.prompt_cache.reports import EntryReport
from mlxceld.prompt_cache.stored_prefix import StoredPrefix


@dataclass(frozen=True, slots=True)
class Holding:
    """What an entry holds: ``nbytes`` is all of it.

    ``blocks`` is None for one without blocks of the pool, whose state is all; of one with blocks
    ``blocks_shared`` are other entries' too, and ``state_bytes`` is what lies beside them.
    """

    nbytes: int
    blocks: int | None = None
    blocks_shared: int = 0
    state_bytes: int | None = None


def describe(
    entry: StoredPrefix, holding: Holding, *, store: str, digest: str, now: float
) -> EntryReport:
    """The report of an entry of ``store``; ``now`` is the store's clock."""
    blocks, shared = holding.blocks, holding.blocks_shared
    paged = blocks is not None
    return EntryReport(
        store=store,
        digest=digest,
        session=session_hash(entry.session),
        client=entry.client,
        tokens=len(entry.tokens),
        blocks=blocks,
        blocks_shared=shared if paged else None,
        blocks_own=blocks - shared if blocks is not None else None,
        state_bytes=holding.state_bytes if paged else holding.nbytes,
        bytes=holding.nbytes,
        age_seconds=now - entry.created,
        idle_seconds=now - entry.last_used,
        hits=entry.hits,
        origin=entry.origin,
        pins=entry.pins,
    )
