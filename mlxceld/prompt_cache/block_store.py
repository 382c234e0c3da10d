"""The store of prefixes whose keys and values lie in the block pool: stored once, read by all."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence

from mlxceld.prompt_cache.block_entry import BlockEntry, Blocks, ChainStats, Match, Seal
from mlxceld.prompt_cache.block_hash import Chain, extend_chain
from mlxceld.prompt_cache.entry import Counters
from mlxceld.prompt_cache.holders import Holders
from mlxceld.prompt_cache.key import Bucket, session_matches
from mlxceld.prompt_cache.radix import RadixIndex, as_tokens
from mlxceld.prompt_cache.rejects import RejectLog, RejectReason
from mlxceld.prompt_cache.reports import Budget, BudgetChange, FlushReport, ResizeReport
from mlxceld.prompt_cache.store import STORE_NAME
from mlxceld.prompt_cache.trace import EventSink


class BlockStore:
    """Keeps prefixes by reference within a budget of real bytes, entries and idle time.

    A match never changes what is stored: who adopts gets references of his own. A block that
    several entries hold counts once. Belongs to one thread; ``clock`` is monotonic, in seconds.
    With ``partial`` off only entries wholly contained in a request are matched.
    """

    def __init__(
        self,
        pool: Blocks,
        budget: Budget,
        clock: Callable[[], float],
        on_event: EventSink,
        rejects: RejectLog,
        *,
        enabled: bool = True,
        min_prefix: int = 1,
        partial: bool = True,
        algorithm: str = "sha256",
    ) -> None:
        self.counters = Counters()
        self.rejects = rejects
        self.min_prefix = max(1, min_prefix)
        self._pool = pool
        self._budget = budget
        self._clock = clock
        self._emit = on_event
        self._switched_on = enabled
        self._partial = partial
        self._algorithm = algorithm
        self._generation = 0
        self._indexes: dict[Bucket, RadixIndex[BlockEntry]] = {}
        # Least recently used first.
        self._by_use: dict[int, BlockEntry] = {}
        # Each entry has a reference to the pool for each block of its table.
        self._holders: Holders[int] = Holders()
        self._hashes: Holders[bytes] = Holders()

    def __len__(self) -> int:
        return len(self._by_use)

    @property
    def bytes(self) -> int:
        """What the blocks of all entries take, each counted once."""
        return len(self._holders) * self._pool.bytes_per_block

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

    def chain_stats(self) -> ChainStats:
        """The block hashes of all entries, counted."""
        return ChainStats(self._hashes.total, len(self._hashes), len(self))

    def entries(self) -> list[BlockEntry]:
        """Every stored entry, the least recently used first."""
        return list(self._by_use.values())

    def find(
        self, bucket: Bucket, session: str, tokens: Sequence[int], max_len: int
    ) -> Match | None:
        """The longest stored beginning of ``tokens[:max_len]``, counted nowhere.

        Of entries that reach equally far one of the session's own is preferred where they end
        there. None if fewer than ``min_prefix`` tokens match.
        """
        index = self._indexes.get(bucket)
        if index is None or not self.enabled:
            return None
        ids = as_tokens(tokens)[: max(max_len, 0)]
        found = self._deepest(index, ids, session)
        if found is None:
            return None
        depth, entry = found
        if depth < self.min_prefix:
            return None
        return Match(entry, depth, entry.table[: self._blocks_for(depth)])

    def adopt(
        self,
        bucket: Bucket,
        session: str,
        tokens: Sequence[int],
        max_len: int,
        *,
        seq_id: int | None = None,
    ) -> Match | None:
        """Look a request up, once: a match's blocks get a reference for the caller to release.

        The entry stays as it is, whatever part of it matched. A disabled store is not looked up in.
        """
        if not self.enabled:
            return None
        self.sweep()
        self.counters.lookups += 1
        match = self.find(bucket, session, tokens, max_len)
        if match is None:
            self.counters.misses += 1
            return None
        self._pool.retain(match.blocks)
        self.counters.hits += 1
        match.entry.hits += 1
        self._touch(match.entry)
        self._emit(
            "adopt",
            session=session,
            seq_id=seq_id,
            matched_len=match.matched,
            context_len=len(tokens),
            nbytes=len(match.blocks) * self._pool.bytes_per_block,
            store=STORE_NAME,
        )
        return match

    def adoption_failed(
        self, match: Match, reason: RejectReason, *, seq_id: int | None = None
    ) -> None:
        """The caller could not use what it adopted: the lookup was a miss, for ``reason``.

        Its references are released here.
        """
        self._pool.release(match.blocks)
        self.counters.hits -= 1
        self.counters.misses += 1
        match.entry.hits -= 1
        self.reject(
            reason,
            session=match.entry.session,
            seq_id=seq_id,
            context_len=match.matched,
            donation=False,
        )

    def insert(
        self,
        bucket: Bucket,
        session: str,
        tokens: Sequence[int],
        seal: Seal,
        *,
        seq_id: int | None = None,
        client: str | None = None,
        record_refusal: bool = True,
    ) -> RejectReason | None:
        """Store a prefix; returns why not, or None when it is stored.

        Blocks that another entry holds already are shared; ``seal`` is called for the tokens
        after them only. A refused insert changes nothing that is stored, but for what was evicted
        to make room. An equal entry of the session is replaced. ``record_refusal`` is off for what
        is only an early donation: a request is refused once, at its end.
        """
        ids = as_tokens(tokens)
        reason = self._refusal(len(ids))
        table = None if reason is not None else self._table(bucket, ids, seal)
        if table is None:
            reason = reason or RejectReason.LAYOUT_CONSTRAINTS
            if not record_refusal:
                return reason
            self.counters.rejections_oversized += reason is RejectReason.OVERSIZED
            self.reject(reason, session=session, seq_id=seq_id, context_len=len(ids))
            return reason
        hashes = self._chain(bucket, ids)
        hits = self._replace(bucket, ids, session)
        now = self._clock()
        entry = BlockEntry(bucket, session, ids, table, hashes, now, now, hits, client)
        self._indexes.setdefault(bucket, RadixIndex()).add(ids, session, entry)
        self._by_use[id(entry)] = entry
        self._holders.add(table)
        self._hashes.add(hashes)
        self.counters.inserts += 1
        self._emit(
            "store",
            session=session,
            seq_id=seq_id,
            context_len=len(ids),
            nbytes=len(table) * self._pool.bytes_per_block,
            store=STORE_NAME,
        )
        return None

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
        """Record that a donation (or an adoption) was declined."""
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
        now, ttl = self._clock(), self._budget.ttl_seconds
        gone = 0
        while ttl > 0 and (oldest := next(iter(self._by_use.values()), None)) is not None:
            if now - oldest.last_used < ttl:
                break
            self._evict(oldest, "ttl")
            gone += 1
        self.counters.evictions_ttl += gone
        return gone

    def evict_oldest(self) -> bool:
        """Give up the least recently used entry under memory pressure; False if there is none."""
        oldest = next(iter(self._by_use.values()), None)
        if oldest is None:
            return False
        self._evict(oldest, "lru")
        self.counters.evictions_lru += 1
        return True

    def flush(self, session: str | None = None, *, dry_run: bool = False) -> FlushReport:
        """Drop every entry, or those of one session (its raw key or its hash).

        Bytes are what the entries alone hold; running requests may hold some of them longer.
        """
        victims = [
            entry
            for entry in self._by_use.values()
            if session is None or session_matches(entry.session, session)
        ]
        freed = self._bytes_of(victims)
        if not dry_run:
            for entry in victims:
                self._drop(entry)
            self.counters.evictions_flush += len(victims)
            key = victims[0].session if session is not None and victims else session
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
        freed = self._bytes_of(victims)
        if not dry_run:
            for entry in victims:
                self._drop(entry)
            self._budget = after
            self._generation += 1
            self.counters.evictions_resize += len(victims)
            self._emit("resize", nbytes=freed, store=STORE_NAME)
        return ResizeReport(before, after, len(victims), freed, 0, self._generation, dry_run)

    def remap(self, moved: Mapping[int, int]) -> None:
        """Follow blocks that the pool has moved: old id to new id."""
        for entry in self._by_use.values():
            if any(block in moved for block in entry.table):
                entry.table = tuple(moved.get(block, block) for block in entry.table)
        self._holders.remap(moved)

    def tables(self) -> list[tuple[int, ...]]:
        """The block table of every entry: the references that the store holds."""
        return [entry.table for entry in self._by_use.values()]

    def check(self) -> None:
        """Raise AssertionError, with the numbers, if the books do not balance."""
        counters, entries = self.counters, self._by_use.values()
        for entry in entries:
            blocks = self._blocks_for(len(entry.tokens))
            assert len(entry.table) == blocks, f"{len(entry.table)} blocks, {blocks} needed"
        hashes = Holders(entry.hashes for entry in entries)
        assert hashes == self._hashes, f"{len(hashes)} hashes, {len(self._hashes)} booked"
        recount = Holders(entry.table for entry in entries)
        assert recount == self._holders, f"{len(recount)} blocks held, {len(self._holders)} booked"
        indexed = sum(len(index) for index in self._indexes.values())
        assert indexed == len(entries), f"{indexed} entries indexed, {len(entries)} listed"
        left = (
            counters.replaced
            + counters.evictions_lru
            + counters.evictions_ttl
            + counters.evictions_flush
            + counters.evictions_resize
        )
        assert counters.inserts == len(entries) + left, f"{counters}, {len(entries)} entries"
        assert counters.lookups == counters.hits + counters.misses, f"{counters}"
        assert self.bytes <= self._budget.capacity_bytes, f"{self.bytes} bytes, {self._budget}"
        assert len(entries) <= self._budget.max_entries, f"{len(entries)} entries, {self._budget}"
        uses = [entry.last_used for entry in entries]
        assert uses == sorted(uses), "entries are out of the order of their use"
        for bucket, index in self._indexes.items():
            assert len(index), f"an empty index for {bucket}"
            index.check()

    def _deepest(
        self, index: RadixIndex[BlockEntry], ids: array[int], session: str
    ) -> tuple[int, BlockEntry] | None:
        if self._partial:
            found = index.longest(ids)
            if found is None:
                return None
            depth, entry = found
            own = index.get(ids[:depth], session)
            return depth, own if own is not None else entry
        best = None
        for depth, items in index.prefixes(ids):
            best = depth, items.get(session) or next(reversed(items.values()))
        return best

    def _touch(self, entry: BlockEntry) -> None:
        entry.last_used = self._clock()
        del self._by_use[id(entry)]
        self._by_use[id(entry)] = entry

    def _enabled_under(self, budget: Budget) -> bool:
        return self._switched_on and budget.capacity_bytes > 0 and budget.max_entries > 0

    def _refusal(self, tokens: int) -> RejectReason | None:
        if not self.enabled:
            return RejectReason.DISABLED
        if tokens < self.min_prefix:
            return RejectReason.PREFIX_TOO_SHORT
        if self._blocks_for(tokens) > self._capacity(self._budget):
            return RejectReason.OVERSIZED
        return None

    def _table(self, bucket: Bucket, ids: array[int], seal: Seal) -> tuple[int, ...] | None:
        """Blocks for all tokens, each with a reference for the new entry; None if they do not fit.

        Shared blocks are held on to first: what makes room may be the entry that they come from.
        """
        self.sweep()
        shared = self._held(bucket, ids)
        self._pool.retain(shared)
        new = self._blocks_for(len(ids)) - len(shared)
        self._make_room(shared, new)
        sealed: Sequence[int] | None = []
        try:
            while new and (sealed := seal(len(shared) * self._pool.block_size, len(ids))) is None:
                if not self.evict_oldest():
                    break
        except BaseException:
            self._pool.release(shared)
            raise
        if sealed is None:
            self._pool.release(shared)
            return None
        return (*shared, *sealed)

    def _held(self, bucket: Bucket, ids: array[int]) -> tuple[int, ...]:
        """Stored blocks that these tokens can share: whole ones, or all if all tokens are."""
        index = self._indexes.get(bucket)
        found = index.longest(ids) if index is not None else None
        if found is None:
            return ()
        depth, entry = found
        if depth == len(ids):
            return entry.table[: self._blocks_for(depth)]
        return entry.table[: depth // self._pool.block_size]

    def _chain(self, bucket: Bucket, ids: array[int]) -> Chain:
        """The hash chain of a new entry; what a stored entry shares of it is not hashed again."""
        index = self._indexes.get(bucket)
        found = index.longest(ids) if index is not None else None
        size = self._pool.block_size
        known = () if found is None else found[1].hashes[: found[0] // size]
        return extend_chain(known, ids, size, self._algorithm, bucket.media)

    def _replace(self, bucket: Bucket, ids: array[int], session: str) -> int:
        """Drop the session's equal entry, if there is one; its hits."""
        index = self._indexes.get(bucket)
        old = index.get(ids, session) if index is not None else None
        if old is None:
            return 0
        self._drop(old)
        self.counters.replaced += 1
        return old.hits

    def _make_room(self, shared: Sequence[int], new: int) -> None:
        """Evict by use until an entry of these blocks fits: entries first, then bytes."""
        capacity = self._capacity(self._budget)
        while self._by_use:
            needed = new + sum(block not in self._holders for block in shared)
            fits = len(self._holders) + needed <= capacity
            if fits and len(self._by_use) < self._budget.max_entries:
                return
            self.evict_oldest()

    def _capacity(self, budget: Budget) -> int:
        return budget.capacity_bytes // self._pool.bytes_per_block

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._pool.block_size)

    def _above(self, budget: Budget) -> list[BlockEntry]:
        """What has to go so that a budget holds, the least recently used first."""
        now, ttl = self._clock(), budget.ttl_seconds
        entries = list(self._by_use.values())
        if not self._enabled_under(budget):
            return entries
        capacity = self._capacity(budget)
        left = self._holders.copy()
        victims: list[BlockEntry] = []
        for position, entry in enumerate(entries):
            expired = ttl > 0 and now - entry.last_used >= ttl
            few = len(entries) - position <= budget.max_entries
            if few and not expired and len(left) <= capacity:
                break
            victims.append(entry)
            left.drop(entry.table)
        return victims

    def _bytes_of(self, victims: Iterable[BlockEntry]) -> int:
        """Bytes that the store no longer holds once these are gone."""
        freed = self._holders.freed_by(entry.table for entry in victims)
        return freed * self._pool.bytes_per_block

    def _evict(self, entry: BlockEntry, reason: str) -> None:
        freed = self._bytes_of([entry])
        self._drop(entry)
        self._emit(
            "evict",
            session=entry.session,
            context_len=len(entry.tokens),
            reason=reason,
            nbytes=freed,
            store=STORE_NAME,
        )

    def _drop(self, entry: BlockEntry) -> None:
        index = self._indexes[entry.bucket]
        index.remove(entry.tokens, entry.session)
        if not index:
            del self._indexes[entry.bucket]
        del self._by_use[id(entry)]
        self._holders.drop(entry.table)
        self._hashes.drop(entry.hashes)
        self._pool.release(entry.table)
