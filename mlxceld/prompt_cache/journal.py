"""What happens in a store: each thing counted once, and told to the trace."""

from __future__ import annotations

from typing import Literal

from mlxceld.prompt_cache.counters import Counters
from mlxceld.prompt_cache.rejects import RejectLog, RejectReason
from mlxceld.prompt_cache.stored_prefix import StoredPrefix
from mlxceld.prompt_cache.trace import EventSink


class Journal:
    """Counts and tells what a store does; it decides nothing and changes only ``entry.hits``.

    ``store`` is what its events call the store, ``kind`` what a request's log line calls what it
    adopted. Sizes are bytes, lengths tokens; sessions are raw keys.
    """

    def __init__(self, store: str, kind: str, on_event: EventSink, rejects: RejectLog) -> None:
        self.counters = Counters()
        self.rejects = rejects
        self._store = store
        self._kind = kind
        self._emit = on_event

    def stored(self, entry: StoredPrefix, *, seq_id: int | None, nbytes: int) -> None:
        """An entry is new in the store."""
        self.counters.inserts += 1
        self._emit(
            "store",
            session=entry.session,
            seq_id=seq_id,
            context_len=len(entry.tokens),
            nbytes=nbytes,
            store=self._store,
        )

    def adopted(
        self,
        entry: StoredPrefix,
        *,
        session: str,
        seq_id: int | None,
        matched: int,
        context_len: int,
        nbytes: int,
        counted: bool = True,
    ) -> None:
        """A lookup found an entry; not ``counted`` if it was for no request."""
        self.counters.hits += counted
        entry.hits += counted
        self.rejects.outcomes.adopted(seq_id, self._kind)
        self._tell_adoption(session, seq_id, matched, context_len, nbytes)

    def handed_over(
        self,
        *,
        session: str,
        seq_id: int,
        matched: int,
        context_len: int,
        nbytes: int,
        counted: bool = True,
    ) -> None:
        """A lookup was answered by what another request had just computed, not by an entry."""
        self.counters.lookups += counted
        self.counters.hits += counted
        self._tell_adoption(session, seq_id, matched, context_len, nbytes)

    def adoption_failed(
        self,
        entry: StoredPrefix,
        reason: RejectReason,
        *,
        seq_id: int | None,
        matched: int,
        nbytes: int | None = None,
        counted: bool = True,
    ) -> None:
        """A lookup's adopter could not use what it got: the hit was a miss."""
        self.counters.hits -= counted
        self.counters.misses += counted
        entry.hits -= counted
        self.rejects.outcomes.adopted(seq_id, None)
        self.rejected(
            reason,
            session=entry.session,
            seq_id=seq_id,
            context_len=matched,
            nbytes=nbytes,
            donation=False,
        )

    def rejected(
        self,
        reason: RejectReason,
        *,
        session: str | None,
        seq_id: int | None,
        context_len: int,
        nbytes: int | None = None,
        donation: bool = True,
    ) -> None:
        """A donation (or an adoption) was declined; once a request and direction."""
        if not self.rejects.record(
            reason, seq_id=seq_id, context_len=context_len, donation=donation
        ):
            return
        self.counters.rejections_oversized += reason is RejectReason.OVERSIZED
        self._emit(
            "reject",
            session=session,
            seq_id=seq_id,
            matched_len=None if donation else context_len,
            context_len=context_len,
            reason=reason.value,
            nbytes=nbytes,
            store=self._store,
        )

    def superseded(
        self, entry: StoredPrefix, *, session: str, seq_id: int | None, context_len: int, freed: int
    ) -> None:
        """An entry went, since a longer one makes it useless."""
        self.counters.supersedes += 1
        self._emit(
            "supersede",
            session=session,
            seq_id=seq_id,
            matched_len=len(entry.tokens),
            context_len=context_len,
            nbytes=freed,
            store=self._store,
        )

    def evicted(self, entry: StoredPrefix, reason: Literal["lru", "ttl"], *, freed: int) -> None:
        """An entry went for want of room (lru) or use (ttl)."""
        self.counters.evictions_lru += reason == "lru"
        self.counters.evictions_ttl += reason == "ttl"
        self._emit(
            "evict",
            session=entry.session,
            context_len=len(entry.tokens),
            reason=reason,
            nbytes=freed,
            store=self._store,
        )

    def flushed(self, entries: int, *, session: str | None, freed: int) -> None:
        """So many entries were flushed, all or those of one session."""
        self.counters.evictions_flush += entries
        self._emit("flush", session=session, nbytes=freed, store=self._store)

    def resized(self, evicted: int, *, freed: int) -> None:
        """The budget was changed, and so many entries went for it."""
        self.counters.evictions_resize += evicted
        self._emit("resize", nbytes=freed, store=self._store)

    def _tell_adoption(
        self, session: str, seq_id: int | None, matched: int, context_len: int, nbytes: int
    ) -> None:
        self._emit(
            "adopt",
            session=session,
            seq_id=seq_id,
            matched_len=matched,
            context_len=context_len,
            nbytes=nbytes,
            store=self._store,
        )
