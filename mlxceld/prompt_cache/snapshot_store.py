"""The store of snapshots: states that a model whose caches are not all pageable can resume at."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from mlxceld.prompt_cache.block_entry import Blocks, Seal
from mlxceld.prompt_cache.description import Holding
from mlxceld.prompt_cache.entry_store import EntryStore
from mlxceld.prompt_cache.held_blocks import HeldBlocks
from mlxceld.prompt_cache.key import Bucket
from mlxceld.prompt_cache.match import Match, Purpose, Query
from mlxceld.prompt_cache.radix import TYPE_CODE, as_tokens
from mlxceld.prompt_cache.rejects import RejectLog, RejectReason
from mlxceld.prompt_cache.reports import Budget, Limits
from mlxceld.prompt_cache.snapshot_entry import OUTDATES, Origin, SnapshotEntry
from mlxceld.prompt_cache.trace import EventSink

P = TypeVar("P")

_NO_SESSION = ""
"""Under which session an entry is listed that none stored; no caller's key is empty."""


class SnapshotStore(EntryStore[SnapshotEntry[P]], Generic[P]):
    """Keeps states by exact prefix within a budget of real bytes, entries and idle time of its own.

    A snapshot is adopted by its own session, a head by any. A longer one replaces those of its
    session that it strictly extends (see :data:`OUTDATES`). ``pool`` holds the blocks of pageable
    layers and is None where a model has none; a block that several snapshots hold counts once.
    """

    kind = "snapshot"
    name = "snapshots"
    by_session = True

    def __init__(
        self,
        pool: Blocks | None,
        budget: Budget,
        clock: Callable[[], float],
        on_event: EventSink,
        rejects: RejectLog,
        *,
        enabled: bool = True,
        min_prefix: int = 1,
    ) -> None:
        super().__init__(budget, clock, on_event, rejects, enabled=enabled, min_prefix=min_prefix)
        self._blocks = HeldBlocks(pool)
        self._state_bytes = 0
        self._origins: Counter[Origin] = Counter()
        self.ceiling: int | None = None
        """Bytes that the store may hold at this moment, if that is less than its capacity."""

    @property
    def bytes(self) -> int:
        """What all states take, and the blocks, each counted once."""
        return self._state_bytes + self._blocks.bytes

    def count(self, origin: Origin) -> int:
        """How many entries of an origin there are."""
        return self._origins[origin]

    def size(self, entry: SnapshotEntry[P]) -> int:
        """What an entry takes, with all of its blocks."""
        return entry.state_bytes + self._blocks.size(entry.table)

    def has_head(self, bucket: Bucket, tokens: Sequence[int]) -> bool:
        """Whether exactly these tokens are stored as a head; whoever asks uses it."""
        index = self._indexes.get(bucket)
        if index is None:
            return False
        head = index.get(as_tokens(tokens), _tag(_NO_SESSION, Origin.HEAD))
        if head is None or self._expired(head, self._clock()):
            return False
        self.touch(head)
        return True

    def find(self, query: Query) -> tuple[int, SnapshotEntry[P]] | None:
        """See :class:`EntryStore`: the longest entry that is wholly a beginning of the prompt.

        Counted nowhere. None if the longest has fewer than ``min_prefix`` tokens.
        """
        index = self._indexes.get(query.bucket)
        if index is None or not self.enabled:
            return None
        now, best = self._clock(), None
        for depth, items in index.prefixes(query.usable):
            if depth < self.min_prefix:
                continue
            for origin in Origin:
                entry = items.get(_tag(query.session or _NO_SESSION, origin))
                if entry is not None and not self._expired(entry, now):
                    best = depth, entry
        return best

    def usable_length(self, entry: SnapshotEntry[P], query: Query) -> int:
        """See :class:`EntryStore`."""
        own = entry.origin is Origin.HEAD or entry.session == query.session
        length = len(entry.tokens)
        if entry.bucket != query.bucket or not own or not self.min_prefix <= length:
            return 0
        fits = length <= query.max_len and entry.tokens == query.tokens[:length]
        return length if fits else 0

    def adopt(
        self,
        match: Match[SnapshotEntry[P]],
        *,
        seq_id: int | None = None,
        purpose: Purpose = Purpose.REQUEST,
    ) -> SnapshotEntry[P] | None:
        """Use what was found: its blocks get a reference for the caller to release.

        The entry stays. The heads that the request begins with count as used, whatever is adopted.
        An outdated match is renewed. A disabled store counts nothing.
        """
        if not self.enabled:
            return None
        match = self.renew(match)
        self.counters.lookups += purpose.counted
        query, entry = match.query, match.entry
        if entry is None:
            if purpose.told:
                self._missed(match, seq_id=seq_id, counted=purpose.counted)
            return None
        self._blocks.retain(entry.table)
        for head in self._ancestors(query.bucket, entry.tokens, _NO_SESSION, (Origin.HEAD,)):
            self.touch(head)
        self.touch(entry)
        if purpose.told:
            self.journal.adopted(
                entry,
                session=query.session,
                seq_id=seq_id,
                matched=match.matched,
                context_len=len(query.tokens),
                nbytes=self.size(entry),
                counted=purpose.counted,
            )
        return entry

    def adoption_failed(
        self,
        entry: SnapshotEntry[P],
        reason: RejectReason,
        *,
        seq_id: int | None = None,
        purpose: Purpose = Purpose.REQUEST,
    ) -> None:
        """The caller could not use what it adopted: the lookup was a miss, for ``reason``.

        Its references are released here; nothing else happens for a request that was preempted.
        """
        self._blocks.release(entry.table)
        if not purpose.told:
            return
        self.journal.adoption_failed(
            entry,
            reason,
            seq_id=seq_id,
            matched=len(entry.tokens),
            counted=purpose.counted,
        )

    def handed_over(
        self,
        query: Query,
        *,
        seq_id: int,
        matched: int,
        nbytes: int,
        purpose: Purpose = Purpose.REQUEST,
    ) -> None:
        """A look-up was answered by a state that another request had just computed."""
        if not purpose.told:
            return
        self.journal.handed_over(
            session=query.session,
            seq_id=seq_id,
            matched=matched,
            context_len=len(query.tokens),
            nbytes=nbytes,
            counted=purpose.counted,
        )

    def insert(
        self,
        bucket: Bucket,
        session: str | None,
        tokens: Sequence[int],
        origin: Origin,
        state: P,
        state_bytes: int,
        seal: Seal,
        *,
        seq_id: int | None = None,
        client: str | None = None,
    ) -> RejectReason | None:
        """Store the state after ``tokens``; returns why not, or None when it is stored.

        ``seal`` is called for the tokens whose blocks no other entry holds, never without a pool.
        A refusal changes nothing that is stored. Then what this one outdates goes, but for a caller
        without a session; then its equal; then the least recently used make room.
        """
        ids = array(TYPE_CODE, tokens)
        reason = self._refusal(len(ids), state_bytes)
        if reason is not None:
            self.reject(
                reason,
                session=session,
                seq_id=seq_id,
                context_len=len(ids),
                nbytes=state_bytes + self._blocks.needed(len(ids)) * self._blocks.bytes_each,
            )
            return reason
        self.sweep()
        # Held on to first: what goes may be the entry that they come from.
        shared = self._blocks.shareable(self._indexes.get(bucket), ids)
        self._blocks.retain(shared)
        try:
            if session is not None:
                self._supersede(bucket, ids, session, origin, seq_id=seq_id)
            old = self._replace(bucket, ids, _tag(session or _NO_SESSION, origin))
            new = self._blocks.needed(len(ids)) - len(shared)
            roomy = self._make_room(state_bytes, shared, new)
            if not roomy and self._pins:
                self._blocks.release(shared)
                reason = RejectReason.OVERSIZED
                self.reject(reason, session=session, seq_id=seq_id, context_len=len(ids))
                return reason
            sealed = seal(len(shared) * self._blocks.block_size, len(ids)) if new else ()
        except BaseException:
            self._blocks.release(shared)
            raise
        if sealed is None:
            self._blocks.release(shared)
            reason = RejectReason.LAYOUT_CONSTRAINTS
            self.reject(reason, session=session, seq_id=seq_id, context_len=len(ids))
            return reason
        now = self._clock()
        entry = SnapshotEntry(
            bucket,
            session or _NO_SESSION,
            ids,
            origin,
            state,
            state_bytes,
            (*shared, *sealed),
            now,
            now,
            hits=old.hits if old is not None else 0,
            client=client,
            pins=old.pins if old is not None else 0,
        )
        self._state_bytes += state_bytes
        self._blocks.add(entry.table)
        self._origins[origin] += 1
        self._add(entry, seq_id=seq_id, nbytes=self.size(entry))
        return None

    def remap(self, moved: Mapping[int, int]) -> None:
        """Follow blocks that the pool has moved: old id to new id."""
        self._blocks.remap(moved, self._by_use.values())

    def tables(self) -> list[tuple[int, ...]]:
        """The block table of every entry: the references that the store holds."""
        return [entry.table for entry in self._by_use.values()]

    def check(self) -> None:
        """Raise AssertionError, with the numbers, if the books do not balance."""
        super().check()
        entries = self.entries()
        held = sum(entry.state_bytes for entry in entries)
        assert held == self._state_bytes, f"states of {held} bytes, {self._state_bytes} booked"
        self._blocks.check(entries)
        origins = Counter(entry.origin for entry in entries)
        assert origins == self._origins, f"{origins} listed, {self._origins} booked"

    def _limits(self, budget: Budget) -> Limits:
        return budget.snapshots

    def _tag(self, entry: SnapshotEntry[P]) -> str:
        return _tag(entry.session, entry.origin)

    def _refusal(self, tokens: int, state_bytes: int) -> RejectReason | None:
        if not self.enabled:
            return RejectReason.DISABLED
        if tokens < self.min_prefix:
            return RejectReason.PREFIX_TOO_SHORT
        needed = state_bytes + self._blocks.needed(tokens) * self._blocks.bytes_each
        if needed > self._room():
            return RejectReason.OVERSIZED
        return None

    def _ancestors(
        self, bucket: Bucket, ids: array[int], session: str, origins: Sequence[Origin]
    ) -> list[SnapshotEntry[P]]:
        """The session's entries of these origins whose tokens ``ids`` strictly extends.

        Found on the one path of the index that spells ``ids``, whatever else is stored.
        """
        index = self._indexes.get(bucket)
        if index is None:
            return []
        found = []
        for depth, items in index.prefixes(ids):
            if depth < len(ids):
                found += [e for o in origins if (e := items.get(_tag(session, o))) is not None]
        return found

    def _supersede(
        self, bucket: Bucket, ids: array[int], session: str, origin: Origin, *, seq_id: int | None
    ) -> None:
        """Drop what a new entry of a session makes useless."""
        for entry in self._ancestors(bucket, ids, session, OUTDATES[origin]):
            if entry.session != session or entry.pins:
                continue  # a head of another session, or kept on purpose
            freed = self._bytes_of([entry])
            self._drop(entry)
            self.journal.superseded(
                entry, session=session, seq_id=seq_id, context_len=len(ids), freed=freed
            )

    def _make_room(self, state_bytes: int, shared: Sequence[int], new: int) -> bool:
        """Evict by use until an entry fits: entries first, then bytes; False if pins leave none."""
        limits = self._limits(self._budget)
        while self._by_use:
            if self._fits(state_bytes, shared, new) and len(self) < limits.max_entries:
                return True
            if self._evict_oldest() is None:
                return False
        return True

    def _fits(self, state_bytes: int, shared: Sequence[int], new: int) -> bool:
        blocks = new + self._blocks.missing(shared)
        return self.bytes + state_bytes + blocks * self._blocks.bytes_each <= self._room()

    def _room(self) -> int:
        """Bytes that the store may hold once something more is in it."""
        capacity = self._limits(self._budget).capacity_bytes
        return capacity if self.ceiling is None else min(capacity, self.ceiling)

    def _above(self, budget: Budget) -> list[SnapshotEntry[P]]:
        """What has to go so that a budget holds, the least recently used first."""
        # What is pinned goes last.
        entries = sorted(self.entries(), key=lambda entry: entry.pins > 0)
        now, limits = self._clock(), self._limits(budget)
        if not self._enabled_under(budget):
            return entries
        left, held = self._blocks.trial(), self._state_bytes
        victims: list[SnapshotEntry[P]] = []
        for position, entry in enumerate(entries):
            few = len(entries) - position <= limits.max_entries
            fits = held + len(left) * self._blocks.bytes_each <= limits.capacity_bytes
            if few and fits and not self._expired(entry, now, budget):
                break
            victims.append(entry)
            left.drop(entry.table)
            held -= entry.state_bytes
        return victims

    def _holding(self, entry: SnapshotEntry[P]) -> Holding:
        return Holding(
            self.size(entry),
            len(entry.table) if entry.table else None,
            self._blocks.shared(entry.table),
            entry.state_bytes,
        )

    def _bytes_of(self, victims: Sequence[SnapshotEntry[P]]) -> int:
        states = sum(entry.state_bytes for entry in victims)
        return states + self._blocks.freed_by(entry.table for entry in victims)

    def _stored(self, bucket: Bucket, session: str, tokens: array[int]) -> SnapshotEntry[P] | None:
        index = self._indexes.get(bucket)
        found = (
            index.get(tokens, _tag(session, origin)) if index is not None else None
            for origin in Origin
        )
        return next((entry for entry in found if entry is not None), None)

    def _held_elsewhere(self, victims: Sequence[SnapshotEntry[P]]) -> int:
        return self._blocks.held_elsewhere([entry.table for entry in victims])

    def _drop(self, entry: SnapshotEntry[P]) -> None:
        """Take an entry out of the books; whoever holds its state decides when that dies."""
        super()._drop(entry)
        self._state_bytes -= entry.state_bytes
        self._blocks.drop(entry.table)
        self._origins[entry.origin] -= 1


def _tag(session: str, origin: Origin) -> str:
    """What tells entries with the same tokens apart; there is one head for all sessions."""
    return origin.value if origin is Origin.HEAD else f"{origin.value} {session}"
