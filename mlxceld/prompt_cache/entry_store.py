"""The books of a store of prefixes: who is in it, within which limits, and why entries leave."""

from __future__ import annotations

import abc
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Generic, Literal, TypeVar

from mlxceld.prompt_cache.departures import Departures, Reason
from mlxceld.prompt_cache.description import Holding, describe
from mlxceld.prompt_cache.journal import Journal
from mlxceld.prompt_cache.key import Bucket, entry_digest, session_matches
from mlxceld.prompt_cache.match import Match, Query
from mlxceld.prompt_cache.pins import Pins
from mlxceld.prompt_cache.radix import RadixIndex, as_tokens, common_length
from mlxceld.prompt_cache.recent import Recent
from mlxceld.prompt_cache.rejects import RejectLog, RejectReason
from mlxceld.prompt_cache.reports import (
    Budget,
    BudgetChange,
    EntryReport,
    Evicted,
    FlushReport,
    Limits,
    PinError,
    PinReport,
)
from mlxceld.prompt_cache.stored_prefix import StoredPrefix
from mlxceld.prompt_cache.trace import EventSink

STORE_NAME = "kv"
"""What events and flush orders call the store of prefixes."""

E = TypeVar("E", bound=StoredPrefix)


class EntryStore(abc.ABC, Generic[E]):
    """Entries by prefix and by use, within a budget of bytes, entries and idle time.

    Belongs to one thread. ``clock`` is monotonic, in seconds. ``min_prefix`` is the fewest tokens
    worth storing or adopting. A store says what its entries hold, and which have to go; ``kind``
    is what a request's log line calls what it adopted.
    """

    can_pin = True
    by_session = False
    """Whether an entry serves the session that stored it alone."""

    kind: ClassVar[str]
    name: ClassVar[str] = STORE_NAME

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
        self.rejects = rejects
        self.journal = Journal(self.name, self.kind, on_event, rejects)
        self.departures = Departures()
        self.counters = self.journal.counters
        self.min_prefix = max(1, min_prefix)
        self._budget = budget
        self._clock = clock
        self._switched_on = enabled
        self._indexes: dict[Bucket, RadixIndex[E]] = {}
        # Least recently used first.
        self._by_use: dict[int, E] = {}
        self._pins: Pins[E] = Pins()
        self._recent: Recent[E] = Recent()

    def __len__(self) -> int:
        return len(self._by_use)

    @property
    @abc.abstractmethod
    def bytes(self) -> int:
        """What all entries hold."""

    @property
    def budget(self) -> Budget:
        """The live limits."""
        return self._budget

    @property
    def enabled(self) -> bool:
        """Whether anything can be stored."""
        return self._enabled_under(self._budget)

    def switch_off(self) -> None:
        """Store and adopt nothing any more, whatever the budget; what is stored goes."""
        self.flush()
        self._switched_on = False

    def entries(self) -> list[E]:
        """Every stored entry, the least recently used first."""
        return list(self._by_use.values())

    def touch(self, entry: E) -> None:
        """Make an entry the most recently used one."""
        entry.last_used = self._clock()
        del self._by_use[id(entry)]
        self._by_use[id(entry)] = entry

    def now(self) -> float:
        """The store's clock, in seconds."""
        return self._clock()

    def nearest(self, tokens: Sequence[int]) -> Iterator[tuple[Bucket, int, E]]:
        """For each bucket with a common beginning: how many tokens, and an entry that has them."""
        ids = as_tokens(tokens)
        for bucket, index in self._indexes.items():
            found = index.longest(ids)
            if found is not None:
                yield bucket, *found

    def longest_whole(self, bucket: Bucket, tokens: Sequence[int], max_len: int) -> E | None:
        """The longest entry of whichever session whose tokens all are a beginning of the prompt."""
        index, best = self._indexes.get(bucket), None
        for depth, items in () if index is None else index.prefixes(as_tokens(tokens)[:max_len]):
            if depth >= self.min_prefix and items:
                best = next(iter(items.values()))
        return best

    def bucket_size(self, bucket: Bucket) -> int:
        """How many entries a bucket has."""
        index = self._indexes.get(bucket)
        return 0 if index is None else len(index)

    @property
    def version(self) -> int:
        """A number that changes whenever an entry comes or leaves."""
        return self.counters.inserts + self.counters.left

    def match(self, query: Query) -> Match[E]:
        """Look a prompt up: what an adoption would give now; counted nowhere.

        What has outlived its time is swept before. A disabled store is not looked up in.
        """
        match: Match[E] = Match(self.kind, query, self._recent.generation)
        if not self.enabled:
            return match
        self.sweep()
        found = self.find(query)
        if found is not None:
            return match.to(found[1], found[0])
        return self._with_nearest(match, self._partial_length(query))

    def renew(self, match: Match[E]) -> Match[E]:
        """A match as :meth:`match` would give it now, at less cost.

        What left the store matters only if it is the entry itself; then this looks up anew. What
        was stored since is compared one by one, if it is little.
        """
        self.sweep()
        query, best, longest = match.query, match.entry, match.matched
        since = self._recent.since(match.generation)
        if since is None or (longest and id(best) not in self._by_use):
            return self.match(query)
        if not since:
            return match
        for entry in since:
            usable = self.usable_length(entry, query)
            own = best is not None and entry.session == query.session != best.session
            if usable > longest or (usable == longest and own):
                best, longest = entry, usable
        match = replace(match, generation=self._recent.generation)
        if best is not None:
            return match.to(best, longest)
        ids = query.usable
        nearest = max(
            (common_length(e.tokens, ids) for e in since if e.bucket == query.bucket), default=0
        )
        return self._with_nearest(match, nearest)

    @abc.abstractmethod
    def find(self, query: Query) -> tuple[int, E] | None:
        """The entry that serves a prompt best, and how many tokens of it; None if none does."""

    @abc.abstractmethod
    def usable_length(self, entry: E, query: Query) -> int:
        """How many tokens of an entry serve a prompt; 0 if it does not serve."""

    @property
    def whole_entries(self) -> bool:
        """Whether only an entry that is wholly contained in a request is adopted."""
        return True

    def would_refuse(self, length: int) -> RejectReason | None:
        """Why a donation of so many tokens would be declined, as far as its length tells."""
        if not self.enabled:
            return RejectReason.DISABLED
        return RejectReason.PREFIX_TOO_SHORT if length < self.min_prefix else None

    def reject(
        self,
        reason: RejectReason,
        *,
        session: str | None,
        seq_id: int | None,
        context_len: int,
        nbytes: int | None = None,
        donation: bool = True,
    ) -> None:
        """Record that a donation (or an adoption) was declined, once a request and direction."""
        self.journal.rejected(
            reason,
            session=session,
            seq_id=seq_id,
            context_len=context_len,
            nbytes=nbytes,
            donation=donation,
        )

    def sweep(self) -> int:
        """Drop what has been idle for the time to live; returns how many entries went."""
        now, gone = self._clock(), 0
        while (oldest := self._oldest()) is not None and self._expired(oldest, now):
            self._evict(oldest, "ttl")
            gone += 1
        return gone

    def flush(self, session: str | None = None, *, dry_run: bool = False) -> FlushReport:
        """Drop every entry, or those of one session (its raw key or its hash).

        Pinned ones too. Bytes are what the entries alone hold of the store; what running requests
        hold of them besides is deferred.
        """
        victims = [
            entry
            for entry in self._by_use.values()
            if session is None or session_matches(entry.session, session)
        ]
        freed, held = self._bytes_of(victims), self._held_elsewhere(victims)
        if not dry_run:
            for entry in victims:
                self._depart(entry, "flush")
            # The entries know the raw key where the order gave its hash.
            key = victims[0].session if session is not None and victims else None
            self.journal.flushed(len(victims), session=key, freed=freed)
        return FlushReport(len(victims), freed, held, dry_run)

    def resize(self, changes: BudgetChange, *, dry_run: bool = False) -> Evicted:
        """Change the live limits, evicting down to them at once; what is pinned goes last.

        A capacity or a maximum of 0 disables the store and empties it.
        """
        after = self._budget.changed(changes)
        if not dry_run:
            self.sweep()
        victims = self._above(after)
        freed, held = self._bytes_of(victims), self._held_elsewhere(victims)
        if not dry_run:
            for entry in victims:
                self._depart(entry, "resize")
            self._budget = after
            self.journal.resized(len(victims), freed=freed)
        return Evicted(len(victims), freed, held)

    def pin(
        self, bucket: Bucket, session: str, tokens: array[int], *, keep: bool = True
    ) -> PinReport:
        """Keep a stored prefix whatever its age and use, until it is unpinned or flushed.

        Raises PinError where it is not stored, or where entries are used up by who adopts them.
        With ``keep`` off it is only found.
        """
        entry = self._stored(bucket, session, tokens)
        if entry is None:
            raise PinError("the prompt was computed, and could not be stored")
        if not keep:
            return PinReport.of(self.report(entry))
        if not self.can_pin:
            raise PinError(
                "this model's entries are used up by who adopts them, so none can be pinned"
            )
        self._pins.pin(entry)
        return PinReport.of(self.report(entry))

    def unpin(self, digest: str) -> PinReport | None:
        """Leave a pinned entry to its age; None if no pinned entry has that digest."""
        entry = self._pins.unpin(digest, self._digest)
        return None if entry is None else PinReport.of(self.report(entry))

    def report(self, entry: E) -> EntryReport:
        """What an entry holds and how it was used, without its text."""
        return describe(
            entry,
            self._holding(entry),
            store=self.name,
            digest=self._digest(entry),
            now=self._clock(),
        )

    def check(self) -> None:
        """Raise AssertionError, with the numbers, if the books do not balance."""
        counters, entries = self.counters, self._by_use.values()
        indexed = sum(len(index) for index in self._indexes.values())
        assert indexed == len(entries), f"{indexed} entries indexed, {len(entries)} listed"
        assert counters.inserts == len(entries) + counters.left, (
            f"{counters}, {len(entries)} entries"
        )
        assert counters.lookups == counters.hits + counters.misses, f"{counters}"
        limits = self._limits(self._budget)
        assert self.bytes <= limits.capacity_bytes, f"{self.bytes} bytes, {limits}"
        assert len(entries) <= limits.max_entries, f"{len(entries)} entries, {limits}"
        self._pins.check(entries)
        uses = [entry.last_used for entry in entries]
        assert uses == sorted(uses), "entries are out of the order of their use"
        for bucket, index in self._indexes.items():
            assert len(index), f"an empty index for {bucket}"
            index.check()

    @abc.abstractmethod
    def _bytes_of(self, victims: Sequence[E]) -> int:
        """Bytes that the store no longer holds once these are gone."""

    @abc.abstractmethod
    def _above(self, budget: Budget) -> list[E]:
        """What has to go so that a budget holds."""

    def _stored(self, bucket: Bucket, session: str, tokens: array[int]) -> E | None:
        """The session's entry of exactly these tokens."""
        index = self._indexes.get(bucket)
        return index.get(tokens, session) if index is not None else None

    def _holding(self, entry: E) -> Holding:
        """What an entry holds, for its report."""
        return Holding(self._bytes_of([entry]))

    def _held_elsewhere(self, victims: Sequence[E]) -> int:
        """Bytes that stay in memory for running requests once these are gone."""
        return 0

    def _limits(self, budget: Budget) -> Limits:
        """The part of a budget that is this store's."""
        return budget.kv

    def _tag(self, entry: E) -> str:
        """What tells an entry from others with the same tokens."""
        return entry.session

    def _digest(self, entry: E) -> str:
        return entry_digest(entry.bucket, self._tag(entry), entry.tokens)

    def _enabled_under(self, budget: Budget) -> bool:
        limits = self._limits(budget)
        return self._switched_on and limits.capacity_bytes > 0 and limits.max_entries > 0

    def _expired(self, entry: E, now: float, budget: Budget | None = None) -> bool:
        ttl = self._limits(budget or self._budget).ttl_seconds
        return not entry.pins and ttl > 0 and now - entry.last_used >= ttl

    def _oldest(self) -> E | None:
        return next((entry for entry in self._by_use.values() if not entry.pins), None)

    def _add(self, entry: E, *, seq_id: int | None, nbytes: int) -> None:
        """Book a new entry; there is none of its session under its tokens."""
        index = self._indexes.setdefault(entry.bucket, RadixIndex())
        index.add(entry.tokens, self._tag(entry), entry)
        self._by_use[id(entry)] = entry
        self._pins.add(entry)
        self._recent.add(entry)
        self.journal.stored(entry, seq_id=seq_id, nbytes=nbytes)

    def _missed(self, match: Match[E], *, seq_id: int | None, counted: bool) -> None:
        """Note a look-up that found nothing, and why what is nearest does not serve."""
        self.counters.misses += counted
        if match.rejected is not None:
            self.reject(
                match.rejected,
                session=match.query.session,
                seq_id=seq_id,
                context_len=match.nearest,
                donation=False,
            )

    def _with_nearest(self, match: Match[E], length: int) -> Match[E]:
        """A match of nothing, with the reason where an entry shares ``length`` tokens."""
        if length <= match.nearest or length < self.min_prefix or not self.whole_entries:
            return match
        return replace(match, rejected=RejectReason.MODE_MISMATCH, nearest=length)

    def _partial_length(self, query: Query) -> int:
        """Tokens in common with some entry, where only whole ones are adopted."""
        index = self._indexes.get(query.bucket) if self.whole_entries else None
        found = index.longest(query.usable) if index is not None else None
        return 0 if found is None else found[0]

    def _replace(self, bucket: Bucket, ids: array[int], tag: str) -> E | None:
        """Drop the equal entry under a tag, if there is one, for a new one to take its place."""
        index = self._indexes.get(bucket)
        old = index.get(ids, tag) if index is not None else None
        if old is not None:
            self._drop(old)
            self.counters.replaced += 1
        return old

    def _evict(self, entry: E, reason: Literal["lru", "ttl"]) -> None:
        freed = self._bytes_of([entry])
        self._depart(entry, reason)
        self.journal.evicted(entry, reason, freed=freed)

    def _depart(self, entry: E, reason: Reason) -> None:
        """Drop an entry that nothing takes the place of."""
        self.departures.note(entry, reason, self._clock())
        self._drop(entry)

    def _evict_oldest(self) -> E | None:
        """Give up the least recently used entry to make room; None if there is none."""
        oldest = self._oldest()
        if oldest is not None:
            self._evict(oldest, "lru")
        return oldest

    def evict_for_memory(self) -> bool:
        """Give up the least recently used entry, to free memory; False if there is none."""
        return self._evict_oldest() is not None

    def _drop(self, entry: E) -> None:
        """Take an entry out of the books."""
        index = self._indexes[entry.bucket]
        index.remove(entry.tokens, self._tag(entry))
        if not index:
            del self._indexes[entry.bucket]
        del self._by_use[id(entry)]
        self._pins.drop(entry)
        self._recent.drop(entry)
