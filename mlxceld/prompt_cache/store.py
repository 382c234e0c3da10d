"""The whole-prefix store: an entry is taken, used up and donated again."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from mlxceld.prompt_cache.entry import Counters, Entry, Taken
from mlxceld.prompt_cache.key import Bucket, session_matches
from mlxceld.prompt_cache.radix import TYPE_CODE, RadixIndex, as_tokens
from mlxceld.prompt_cache.rejects import RejectLog, RejectReason
from mlxceld.prompt_cache.reports import Budget, BudgetChange, FlushReport, ResizeReport
from mlxceld.prompt_cache.trace import EventSink

P = TypeVar("P")

STORE_NAME = "kv"
"""What events and flush orders call this store."""


class PrefixStore(Generic[P]):
    """Keeps donated prefixes within a budget of bytes, entries and idle time.

    Belongs to one thread. ``clock`` is monotonic, in seconds. ``min_prefix`` is the fewest tokens
    worth storing or adopting. The budget holds after every call; nothing that left is found again.
    """

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
        self.counters = Counters()
        self.rejects = rejects
        self.min_prefix = max(1, min_prefix)
        self._budget = budget
        self._clock = clock
        self._emit = on_event
        self._switched_on = enabled
        self._generation = 0
        self._bytes = 0
        self._indexes: dict[Bucket, RadixIndex[Entry[P]]] = {}
        # Oldest use first. An entry is used once, when it leaves, so this is also donation order.
        self._by_age: dict[int, Entry[P]] = {}

    def __len__(self) -> int:
        return len(self._by_age)

    @property
    def bytes(self) -> int:
        """What the stored payloads hold, in bytes."""
        return self._bytes

    @property
    def budget(self) -> Budget:
        """The live limits."""
        return self._budget

    @property
    def generation(self) -> int:
        """How often the budget was changed."""
        return self._generation

    @property
    def enabled(self) -> bool:
        """Whether anything can be stored."""
        return self._enabled_under(self._budget)

    def entries(self) -> list[Entry[P]]:
        """Every stored entry, the least recently used first."""
        return list(self._by_age.values())

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
            if reason is RejectReason.OVERSIZED:
                self.counters.rejections_oversized += 1
            self.reject(
                reason, session=session, seq_id=seq_id, context_len=len(tokens), nbytes=nbytes
            )
            return reason

        ids = array(TYPE_CODE, tokens)  # a copy: the caller's may grow
        self.sweep()
        index = self._indexes.get(bucket)
        if index is not None and (old := index.get(ids, session)) is not None:
            self._drop(old)
            self.counters.replaced += 1
        self._make_room(nbytes)

        now = self._clock()
        entry = Entry(
            bucket, session, ids, payload, nbytes, now, now, can_trim, hits=hits, client=client
        )
        self._indexes.setdefault(bucket, RadixIndex()).add(ids, session, entry)
        self._by_age[id(entry)] = entry
        self._bytes += nbytes
        self.counters.inserts += 1
        self._emit(
            "store",
            session=session,
            seq_id=seq_id,
            context_len=len(ids),
            nbytes=nbytes,
            store=STORE_NAME,
        )
        return None

    def find(
        self, bucket: Bucket, session: str, tokens: Sequence[int], max_len: int
    ) -> Taken[P] | None:
        """What :meth:`take` would take, left where it is and counted nowhere."""
        index = self._indexes.get(bucket)
        if index is None or not self.enabled:
            return None
        now = self._clock()
        best: Taken[P] | None = None
        for depth, items in reversed(list(index.prefixes(as_tokens(tokens)[: max_len + 1]))):
            matched = min(depth, max_len)
            if matched < self.min_prefix or (best is not None and matched < best.matched):
                break
            entry = self._pick(items, session, trim=depth > max_len, now=now)
            if entry is None:
                continue
            # Of two equal matches the second needs no trim; only being the own session beats that.
            if best is None or entry.session == session or best.entry.session != session:
                best = Taken(entry.payload, matched, entry)
        return best

    def take(
        self,
        bucket: Bucket,
        session: str,
        tokens: Sequence[int],
        max_len: int,
        *,
        seq_id: int | None = None,
    ) -> Taken[P] | None:
        """Adopt the longest entry that is wholly contained in ``tokens[:max_len]``.

        It leaves the store. An entry of one token more is taken too where its payload can be
        trimmed, so that a prompt that was seen whole is reused. Among equally long matches the
        session's own wins. Counts one lookup; a disabled store is not looked up in.
        """
        if not self.enabled:
            return None
        self.sweep()
        self.counters.lookups += 1
        taken = self.find(bucket, session, tokens, max_len)
        if taken is None:
            self.counters.misses += 1
            return None
        self._drop(taken.entry)
        self.counters.hits += 1
        self.counters.consumed += 1
        taken.entry.hits += 1
        taken.entry.last_used = self._clock()
        self._emit(
            "adopt",
            session=session,
            seq_id=seq_id,
            matched_len=taken.matched,
            context_len=len(tokens),
            nbytes=taken.entry.nbytes,
            store=STORE_NAME,
        )
        return taken

    def adoption_failed(
        self, taken: Taken[P], reason: RejectReason, *, seq_id: int | None = None
    ) -> None:
        """The caller could not use what it took: the lookup was a miss, for ``reason``.

        The entry stays consumed; its payload may be half changed.
        """
        self.counters.hits -= 1
        self.counters.misses += 1
        taken.entry.hits -= 1
        self.reject(
            reason,
            session=taken.entry.session,
            seq_id=seq_id,
            context_len=taken.matched,
            nbytes=taken.entry.nbytes,
            donation=False,
        )

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
        """Record that a donation (or an adoption) was declined before it reached the store."""
        self.rejects.record(reason, seq_id=seq_id, context_len=context_len, donation=donation)
        self._emit(
            "reject",
            session=session,
            seq_id=seq_id,
            context_len=context_len,
            reason=reason.value,
            nbytes=nbytes,
            store=STORE_NAME,
        )

    def sweep(self) -> int:
        """Drop what has been idle for the time to live; returns how many entries went."""
        now = self._clock()
        expired = []
        for entry in self._by_age.values():
            if not self._expired(entry, now):
                break
            expired.append(entry)
        self._evict(expired, "ttl")
        self.counters.evictions_ttl += len(expired)
        return len(expired)

    def flush(self, session: str | None = None, *, dry_run: bool = False) -> FlushReport:
        """Drop every entry, or those of one session (its raw key or its hash)."""
        victims = [
            entry
            for entry in self._by_age.values()
            if session is None or session_matches(entry.session, session)
        ]
        freed = sum(entry.nbytes for entry in victims)
        if not dry_run:
            for entry in victims:
                self._drop(entry)
            self.counters.evictions_flush += len(victims)
            # The entries know the raw key where the order gave its hash.
            key = victims[0].session if session is not None and victims else None
            self._emit("flush", session=key, nbytes=freed, store=STORE_NAME)
        return FlushReport(len(victims), freed, 0, dry_run)

    def resize(self, changes: BudgetChange, *, dry_run: bool = False) -> ResizeReport:
        """Change the live limits, evicting down to them at once.

        A capacity or a maximum of 0 disables the store and empties it.
        """
        before, after = self._budget, self._budget.changed(changes)
        if not dry_run:
            self.sweep()
        victims = self._above(after)
        freed = sum(entry.nbytes for entry in victims)
        if not dry_run:
            for entry in victims:
                self._drop(entry)
            self._budget = after
            self._generation += 1
            self.counters.evictions_resize += len(victims)
            self._emit("resize", nbytes=freed, store=STORE_NAME)
        return ResizeReport(before, after, len(victims), freed, 0, self._generation, dry_run)

    def evict_oldest(self) -> int:
        """Give up the least recently used entry under memory pressure; returns its bytes."""
        for entry in self._by_age.values():
            self._evict([entry], "lru")
            self.counters.evictions_lru += 1
            return entry.nbytes
        return 0

    def check(self) -> None:
        """Raise AssertionError, with the numbers, if the books do not balance."""
        counters, entries = self.counters, self._by_age.values()
        held = sum(entry.nbytes for entry in entries)
        assert held == self._bytes, f"entries hold {held} bytes, the books say {self._bytes}"
        indexed = sum(len(index) for index in self._indexes.values())
        assert indexed == len(entries), f"{indexed} entries indexed, {len(entries)} listed"
        left = (
            counters.consumed
            + counters.replaced
            + counters.evictions_lru
            + counters.evictions_ttl
            + counters.evictions_flush
            + counters.evictions_resize
        )
        assert counters.inserts == len(entries) + left, f"{counters}, {len(entries)} entries"
        assert counters.lookups == counters.hits + counters.misses, f"{counters}"
        assert held <= self._budget.capacity_bytes, f"{held} bytes, {self._budget}"
        assert len(entries) <= self._budget.max_entries, f"{len(entries)} entries, {self._budget}"
        for bucket, index in self._indexes.items():
            assert len(index), f"an empty index for {bucket}"
            index.check()

    def _enabled_under(self, budget: Budget) -> bool:
        return self._switched_on and budget.capacity_bytes > 0 and budget.max_entries > 0

    def _refusal(self, length: int, nbytes: int) -> RejectReason | None:
        if not self.enabled:
            return RejectReason.DISABLED
        if length < self.min_prefix:
            return RejectReason.PREFIX_TOO_SHORT
        if nbytes > self._budget.capacity_bytes:
            return RejectReason.OVERSIZED
        return None

    def _expired(self, entry: Entry[P], now: float, budget: Budget | None = None) -> bool:
        ttl = (budget or self._budget).ttl_seconds
        return ttl > 0 and now - entry.last_used >= ttl

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
        victims = []
        count, held = len(self._by_age) + 1, self._bytes + nbytes
        for entry in self._by_age.values():
            if count <= self._budget.max_entries and held <= self._budget.capacity_bytes:
                break
            victims.append(entry)
            count -= 1
            held -= entry.nbytes
        self._evict(victims, "lru")
        self.counters.evictions_lru += len(victims)

    def _above(self, budget: Budget) -> list[Entry[P]]:
        """What has to go so that a budget holds; entries already expired are not counted."""
        now = self._clock()
        live = [entry for entry in self._by_age.values() if not self._expired(entry, now)]
        if not self._enabled_under(budget):
            return live
        victims: list[Entry[P]] = []
        kept: list[Entry[P]] = []
        for entry in live:
            # What can never fit goes first, lest it push out everything that does.
            gone = self._expired(entry, now, budget) or entry.nbytes > budget.capacity_bytes
            (victims if gone else kept).append(entry)
        held = sum(entry.nbytes for entry in kept)
        for position, entry in enumerate(kept):
            if len(kept) - position <= budget.max_entries and held <= budget.capacity_bytes:
                break
            victims.append(entry)
            held -= entry.nbytes
        return victims

    def _evict(self, victims: Iterable[Entry[P]], reason: str) -> None:
        for entry in victims:
            self._drop(entry)
            self._emit(
                "evict",
                session=entry.session,
                context_len=len(entry.tokens),
                reason=reason,
                nbytes=entry.nbytes,
                store=STORE_NAME,
            )

    def _drop(self, entry: Entry[P]) -> None:
        """Take an entry out of the books; whoever holds it decides when its payload dies."""
        index = self._indexes[entry.bucket]
        index.remove(entry.tokens, entry.session)
        if not index:
            del self._indexes[entry.bucket]
        del self._by_age[id(entry)]
        self._bytes -= entry.nbytes
