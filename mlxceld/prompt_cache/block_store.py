"""The store of prefixes whose keys and values lie in the block pool: stored once, read by all."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence

from mlxceld.prompt_cache.block_entry import AdoptedBlocks, BlockEntry, Blocks, ChainStats, Seal
from mlxceld.prompt_cache.block_hash import Chain, extend_chain
from mlxceld.prompt_cache.description import Holding
from mlxceld.prompt_cache.entry_store import EntryStore
from mlxceld.prompt_cache.held_blocks import HeldBlocks
from mlxceld.prompt_cache.key import Bucket
from mlxceld.prompt_cache.match import Match, Purpose, Query
from mlxceld.prompt_cache.radix import RadixIndex, as_tokens, common_length
from mlxceld.prompt_cache.ref_counts import RefCounts
from mlxceld.prompt_cache.rejects import RejectLog, RejectReason
from mlxceld.prompt_cache.reports import Budget
from mlxceld.prompt_cache.trace import EventSink


class BlockStore(EntryStore[BlockEntry]):
    """Keeps prefixes by reference within a budget of real bytes, entries and idle time.

    A match never changes what is stored: who adopts gets references of his own. A block that
    several entries hold counts once. With ``partial`` off only entries wholly contained in a
    request are matched; ``algorithm`` names the hash of the blocks' chains.
    """

    kind = "blocks"

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
        super().__init__(budget, clock, on_event, rejects, enabled=enabled, min_prefix=min_prefix)
        self._blocks = HeldBlocks(pool)
        self._partial = partial
        self._algorithm = algorithm
        self._hashes: RefCounts[bytes] = RefCounts()

    @property
    def bytes(self) -> int:
        """What the blocks of all entries take, each counted once."""
        return self._blocks.bytes

    @property
    def whole_entries(self) -> bool:
        """See :class:`EntryStore`."""
        return not self._partial

    def would_refuse(self, length: int) -> RejectReason | None:
        """See :class:`EntryStore`; what blocks a prompt needs is known before it is computed."""
        return self._refusal(length)

    def chain_stats(self) -> ChainStats:
        """The block hashes of all entries, counted."""
        return ChainStats(self._hashes.total, len(self._hashes), len(self))

    def find(self, query: Query) -> tuple[int, BlockEntry] | None:
        """See :class:`EntryStore`: the longest stored beginning, counted nowhere.

        Of entries that reach equally far one of the session's own is preferred where they end
        there. None if fewer than ``min_prefix`` tokens match.
        """
        index = self._indexes.get(query.bucket)
        if index is None or not self.enabled:
            return None
        found = self._deepest(index, query.usable, query.session)
        return None if found is None or found[0] < self.min_prefix else found

    def usable_length(self, entry: BlockEntry, query: Query) -> int:
        """See :class:`EntryStore`."""
        if entry.bucket != query.bucket:
            return 0
        common = common_length(entry.tokens, query.usable)
        whole = self._partial or common == len(entry.tokens)
        return common if whole and common >= self.min_prefix else 0

    def blocks_of(self, match: Match[BlockEntry]) -> tuple[int, ...]:
        """The blocks that hold what was matched, as they lie now."""
        if match.entry is None:
            return ()
        return match.entry.table[: self._blocks.needed(match.matched)]

    def whole_blocks(self, bucket: Bucket, tokens: Sequence[int]) -> tuple[int, ...]:
        """The stored blocks that the first tokens fill, as many as there are."""
        held = self._blocks.shareable(self._indexes.get(bucket), as_tokens(tokens))
        return held[: len(tokens) // self._blocks.block_size]

    def adopt(
        self,
        match: Match[BlockEntry],
        *,
        seq_id: int | None = None,
        purpose: Purpose = Purpose.REQUEST,
    ) -> AdoptedBlocks | None:
        """Use what was found: its blocks get a reference for the caller to release.

        The entry stays as it is, whatever part of it matched. An outdated match is renewed.
        A disabled store counts nothing.
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
        adopted = AdoptedBlocks(entry, match.matched, self.blocks_of(match))
        self._blocks.retain(adopted.blocks)
        self.touch(entry)
        if purpose.told:
            self.journal.adopted(
                entry,
                session=match.query.session,
                seq_id=seq_id,
                matched=match.matched,
                context_len=len(match.query.tokens),
                nbytes=self._blocks.size(adopted.blocks),
                counted=purpose.counted,
            )
        return adopted

    def adoption_failed(
        self,
        adopted: AdoptedBlocks,
        reason: RejectReason,
        *,
        seq_id: int | None = None,
        purpose: Purpose = Purpose.REQUEST,
    ) -> None:
        """The caller could not use what it adopted: the lookup was a miss, for ``reason``.

        Its references are released here; nothing else happens for a request that was preempted.
        """
        self._blocks.release(adopted.blocks)
        if not purpose.told:
            return
        self.journal.adoption_failed(
            adopted.entry,
            reason,
            seq_id=seq_id,
            matched=adopted.matched,
            counted=purpose.counted,
        )

    def insert(
        self,
        bucket: Bucket,
        session: str,
        tokens: Sequence[int],
        seal: Seal,
        *,
        held: Sequence[int] = (),
        seq_id: int | None = None,
        client: str | None = None,
        origin: str = "completion",
        record_refusal: bool = True,
    ) -> RejectReason | None:
        """Store a prefix; returns why not, or None when it is stored.

        Blocks that another entry holds already are shared, or those that the caller holds, which
        are whole and begin the tokens; ``seal`` is called for what comes after them only. A refused
        insert changes nothing that is stored, but for what was evicted to make room. An equal
        entry of the session is replaced. ``record_refusal`` is off for what is only an early
        donation: a request is refused once, at its end. Where ``seal`` raises, that is a refusal
        too, and is raised on.
        """
        ids = as_tokens(tokens)
        reason = self._refusal(len(ids))
        if reason is None and not self._fits_beside_pins(bucket, ids):
            reason = RejectReason.OVERSIZED

        def refuse(why: RejectReason) -> RejectReason:
            if record_refusal:
                self.reject(why, session=session, seq_id=seq_id, context_len=len(ids))
            return why

        if reason is not None:
            return refuse(reason)
        try:
            table = self._table(bucket, ids, seal, held)
        except Exception:
            refuse(RejectReason.LAYOUT_CONSTRAINTS)
            raise
        if table is None:
            return refuse(RejectReason.LAYOUT_CONSTRAINTS)
        hashes = self._chain(bucket, ids)
        old = self._replace(bucket, ids, session)
        hits, pins = (old.hits, old.pins) if old is not None else (0, 0)
        now = self._clock()
        entry = BlockEntry(bucket, session, ids, table, hashes, now, now, hits, client)
        entry.origin, entry.pins = origin, pins
        self._blocks.add(table)
        self._hashes.add(hashes)
        self._add(entry, seq_id=seq_id, nbytes=self._blocks.size(table))
        return None

    def evict_for_memory(self) -> bool:
        """Give up the least recently used entry with a block that nobody reads; False if none has.

        What only holds blocks that are in use anyway would be lost for nothing.
        """
        for entry in self._by_use.values():
            if self._blocks.unread(entry.table):
                self._evict(entry, "lru")
                return True
        return False

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
        self._blocks.check(entries)
        hashes = RefCounts(entry.hashes for entry in entries)
        assert hashes == self._hashes, f"{len(hashes)} hashes, {len(self._hashes)} booked"

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

    def _refusal(self, tokens: int) -> RejectReason | None:
        if not self.enabled:
            return RejectReason.DISABLED
        if tokens < self.min_prefix:
            return RejectReason.PREFIX_TOO_SHORT
        if self._blocks.needed(tokens) > self._capacity(self._budget):
            return RejectReason.OVERSIZED
        return None

    def _table(
        self, bucket: Bucket, ids: array[int], seal: Seal, held: Sequence[int]
    ) -> tuple[int, ...] | None:
        """Blocks for all tokens, each with a reference for the new entry; None if they do not fit.

        Shared blocks are held on to first: what makes room may be the entry that they come from.
        """
        self.sweep()
        shared = self._blocks.shareable(self._indexes.get(bucket), ids)
        if len(shared) < len(held):
            shared = tuple(held)
        self._blocks.retain(shared)
        new = self._blocks.needed(len(ids)) - len(shared)
        self._make_room(shared, new)
        sealed: Sequence[int] | None = []
        try:
            while new and (sealed := seal(len(shared) * self._blocks.block_size, len(ids))) is None:
                if not self.evict_for_memory():
                    break
        except BaseException:
            self._blocks.release(shared)
            raise
        if sealed is None:
            self._blocks.release(shared)
            return None
        return (*shared, *sealed)

    def _chain(self, bucket: Bucket, ids: array[int]) -> Chain:
        """The hash chain of a new entry; what a stored entry shares of it is not hashed again."""
        index = self._indexes.get(bucket)
        found = index.longest(ids) if index is not None else None
        size = self._blocks.block_size
        known = () if found is None else found[1].hashes[: found[0] // size]
        return extend_chain(known, ids, size, self._algorithm, bucket.media)

    def _make_room(self, shared: Sequence[int], new: int) -> None:
        """Evict by use until an entry of these blocks fits: entries first, then bytes."""
        capacity = self._capacity(self._budget)
        while self._by_use:
            needed = new + self._blocks.missing(shared)
            fits = len(self._blocks) + needed <= capacity
            if fits and len(self._by_use) < self._budget.max_entries:
                return
            if self._evict_oldest() is None:
                return

    def _fits_beside_pins(self, bucket: Bucket, ids: array[int]) -> bool:
        """Whether there is room for a prefix even if all went but what is pinned."""
        if not self._pins:
            return True
        if len(self._pins) >= self._budget.max_entries:
            return False
        kept = set().union(*(entry.table for entry in self._pins))
        shared = self._blocks.shareable(self._indexes.get(bucket), ids)
        new = self._blocks.needed(len(ids)) - sum(block in kept for block in shared)
        return len(kept) + new <= self._capacity(self._budget)

    def _capacity(self, budget: Budget) -> int:
        return budget.capacity_bytes // self._blocks.bytes_each

    def _above(self, budget: Budget) -> list[BlockEntry]:
        """What has to go so that a budget holds, the least recently used first."""
        # What is pinned goes last.
        now, entries = self._clock(), sorted(self.entries(), key=lambda entry: entry.pins > 0)
        if not self._enabled_under(budget):
            return entries
        capacity = self._capacity(budget)
        left = self._blocks.trial()
        victims: list[BlockEntry] = []
        for position, entry in enumerate(entries):
            few = len(entries) - position <= budget.max_entries
            if few and not self._expired(entry, now, budget) and len(left) <= capacity:
                break
            victims.append(entry)
            left.drop(entry.table)
        return victims

    def _holding(self, entry: BlockEntry) -> Holding:
        table = entry.table
        return Holding(self._blocks.size(table), len(table), self._blocks.shared(table))

    def _bytes_of(self, victims: Sequence[BlockEntry]) -> int:
        return self._blocks.freed_by(entry.table for entry in victims)

    def _held_elsewhere(self, victims: Sequence[BlockEntry]) -> int:
        return self._blocks.held_elsewhere([entry.table for entry in victims])

    def _drop(self, entry: BlockEntry) -> None:
        super()._drop(entry)
        self._hashes.drop(entry.hashes)
        self._blocks.drop(entry.table)
