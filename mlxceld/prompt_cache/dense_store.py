"""The whole-prefix store: an entry is taken, used up and donated again."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from mlxceld.prompt_cache.entry_store import EntryStore
from mlxceld.prompt_cache.key import Bucket
from mlxceld.prompt_cache.match import Match, Purpose, Query
from mlxceld.prompt_cache.radix import TYPE_CODE, common_length
from mlxceld.prompt_cache.rejects import RejectLog, RejectReason
from mlxceld.prompt_cache.reports import Budget
from mlxceld.prompt_cache.trace import EventSink
from mlxceld.prompt_cache.whole_entry import Entry, Taken

P = TypeVar("P")


class DenseStore(EntryStore[Entry[P]], Generic[P]):
    """Keeps donated prefixes within a budget of bytes, entries and idle time.

    The budget holds after every call; nothing that left is found again. An entry is used once,
    when it leaves, so that the order of use is also that of donation.
    """

    can_pin = False
    kind = "prefix"

    def __init__(
        self,
        budget: Budget,
        clock: Callable[[], float],
        on_event: EventSink,
        rejects: RejectLog,
        *,
        enabled: bool = True,
        min_prefix: int = 1,
    ) -> None:
        super().__init__(budget, clock, on_event, rejects, enabled=enabled, min_prefix=min_prefix)
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """What the stored payloads hold, in bytes."""
        return self._bytes

    def insert(
        self,
        bucket: Bucket,
        session: str,
        tokens: Sequence[int],
        payload: P,
        nbytes: int,
        *,
        can_trim: bool = False,
        seq_id: int | None = None,
        client: str | None = None,
        origin: str = "completion",
        hits: int = 0,
    ) -> RejectReason | None:
        """Store a prefix of ``nbytes`` real bytes; returns why not, or None when it is stored.

        A refused insert changes nothing that is stored. An equal key is replaced; then the least
        recently used entries make room.
        """
        if nbytes < 0:
            raise ValueError(f"nbytes is {nbytes}, and a size cannot be negative")
        reason = self._refusal(len(tokens), nbytes)
        if reason is not None:
            self.reject(
                reason, session=session, seq_id=seq_id, context_len=len(tokens), nbytes=nbytes
            )
            return reason

        ids = array(TYPE_CODE, tokens)  # a copy: the caller's may grow
        self.sweep()
        self._replace(bucket, ids, session)
        self._make_room(nbytes)
        now = self._clock()
        entry = Entry(
            bucket,
            session,
            ids,
            payload,
            nbytes,
            now,
            now,
            can_trim,
            hits=hits,
            client=client,
            origin=origin,
        )
        self._bytes += nbytes
        self._add(entry, seq_id=seq_id, nbytes=nbytes)
        return None

    def find(self, query: Query) -> tuple[int, Entry[P]] | None:
        """See :class:`EntryStore`: the longest entry that is wholly contained in the prompt.

        An entry of one token more is found too where its payload can be trimmed, so that a prompt
        that was seen whole is reused. Among equally long matches the session's own wins.
        """
        index = self._indexes.get(query.bucket)
        if index is None or not self.enabled:
            return None
        now, session, limit = self._clock(), query.session, query.max_len
        best: tuple[int, Entry[P]] | None = None
        for depth, items in reversed(list(index.prefixes(query.tokens[: limit + 1]))):
            matched = min(depth, limit)
            if matched < self.min_prefix or (best is not None and matched < best[0]):
                break
            entry = self._pick(items, session, trim=depth > limit, now=now)
            if entry is None:
                continue
            # Of two equal matches the second needs no trim; only being the own session beats that.
            if best is None or entry.session == session or best[1].session != session:
                best = matched, entry
        return best

    def usable_length(self, entry: Entry[P], query: Query) -> int:
        """See :class:`EntryStore`."""
        length, matched = len(entry.tokens), min(len(entry.tokens), query.max_len)
        if entry.bucket != query.bucket or matched < self.min_prefix:
            return 0
        if length > query.max_len + entry.can_trim:
            return 0
        return matched if common_length(entry.tokens, query.tokens) == length else 0

    def take(
        self,
        match: Match[Entry[P]],
        *,
        seq_id: int | None = None,
        purpose: Purpose = Purpose.REQUEST,
    ) -> Taken[P] | None:
        """Adopt what was found: it leaves the store.

        An outdated match is renewed. A disabled store counts nothing.
        """
        if not self.enabled:
            return None
        match = self.renew(match)
        self.counters.lookups += purpose.counted
        entry = match.entry
        if entry is None:
            if purpose.told:
                self._missed(match, seq_id=seq_id, counted=purpose.counted)
            return None
        self._drop(entry)
        self.counters.consumed += 1
        entry.last_used = self._clock()
        if purpose.told:
            self.journal.adopted(
                entry,
                session=match.query.session,
                seq_id=seq_id,
                matched=match.matched,
                context_len=len(match.query.tokens),
                nbytes=entry.nbytes,
                counted=purpose.counted,
            )
        return Taken(entry.payload, match.matched, entry)

    def adoption_failed(
        self,
        taken: Taken[P],
        reason: RejectReason,
        *,
        seq_id: int | None = None,
        purpose: Purpose = Purpose.REQUEST,
    ) -> None:
        """The caller could not use what it took: the lookup was a miss, for ``reason``.

        The entry stays consumed; its payload may be half changed. Nothing else happens for a
        request that was preempted.
        """
        if not purpose.told:
            return
        entry = taken.entry
        self.journal.adoption_failed(
            entry,
            reason,
            seq_id=seq_id,
            matched=taken.matched,
            nbytes=entry.nbytes,
            counted=purpose.counted,
        )

    def evict_oldest(self) -> int:
        """Give up the least recently used entry under memory pressure; returns its bytes."""
        oldest = self._evict_oldest()
        return 0 if oldest is None else oldest.nbytes

    def check(self) -> None:
        """Raise AssertionError, with the numbers, if the books do not balance."""
        super().check()
        held = self._bytes_of(self.entries())
        assert held == self._bytes, f"entries hold {held} bytes, the books say {self._bytes}"

    def _bytes_of(self, victims: Sequence[Entry[P]]) -> int:
        return sum(entry.nbytes for entry in victims)

    def _refusal(self, length: int, nbytes: int) -> RejectReason | None:
        if not self.enabled:
            return RejectReason.DISABLED
        if length < self.min_prefix:
            return RejectReason.PREFIX_TOO_SHORT
        if nbytes > self._budget.capacity_bytes:
            return RejectReason.OVERSIZED
        return None

    def _pick(
        self, items: dict[str, Entry[P]], session: str, *, trim: bool, now: float
    ) -> Entry[P] | None:
        """Of entries with the same tokens, the session's own, else the most recent."""

        def usable(entry: Entry[P]) -> bool:
            return (entry.can_trim or not trim) and not self._expired(entry, now)

        own = items.get(session)
        if own is not None and usable(own):
            return own
        # An entry is added once and never moved, so the newest is the last.
        return next(filter(usable, reversed(items.values())), None)

    def _make_room(self, nbytes: int) -> None:
        """Evict by age until one more entry of this size fits: entries first, then bytes."""
        while self._by_use:
            fits = self._bytes + nbytes <= self._budget.capacity_bytes
            if fits and len(self) < self._budget.max_entries:
                return
            self._evict_oldest()

    def _above(self, budget: Budget) -> list[Entry[P]]:
        """What has to go so that a budget holds; entries already expired are not counted."""
        now = self._clock()
        live = [entry for entry in self._by_use.values() if not self._expired(entry, now)]
        if not self._enabled_under(budget):
            return live
        victims: list[Entry[P]] = []
        kept: list[Entry[P]] = []
        for entry in live:
            # What can never fit goes first, lest it push out everything that does.
            gone = self._expired(entry, now, budget) or entry.nbytes > budget.capacity_bytes
            (victims if gone else kept).append(entry)
        held = self._bytes_of(kept)
        for position, entry in enumerate(kept):
            if len(kept) - position <= budget.max_entries and held <= budget.capacity_bytes:
                break
            victims.append(entry)
            held -= entry.nbytes
        return victims

    def _drop(self, entry: Entry[P]) -> None:
        """Take an entry out of the books; whoever holds it decides when its payload dies."""
        super()._drop(entry)
        self._bytes -= entry.nbytes
