"""The block store against a naive one, over a pool whose blocks remember what was put in them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mlxceld.kv.blocks import BlockAllocator
from mlxceld.prompt_cache.block_entry import AdoptedBlocks, BlockEntry
from mlxceld.prompt_cache.block_store import BlockStore
from mlxceld.prompt_cache.key import Bucket
from mlxceld.prompt_cache.match import Query
from mlxceld.prompt_cache.radix import as_tokens, common_length
from mlxceld.prompt_cache.rejects import RejectLog, RejectReason
from mlxceld.prompt_cache.reports import Budget, BudgetChange

MIN_PREFIX = 2
SIZE = 3
BUCKETS = st.sampled_from([Bucket("m", "a"), Bucket("m", "b")])
SESSIONS = st.sampled_from(["x", "y"])
# Few distinct tokens and short runs, so that prefixes meet, split and merge all the time.
TOKENS = st.lists(st.integers(0, 1), max_size=11)


class RememberingPool:
    """Reference counts of the real allocator; a block holds the tokens it was sealed with."""

    block_size = SIZE
    bytes_per_block = 10

    def __init__(self, blocks: int) -> None:
        self.allocator = BlockAllocator(4, blocks)
        self.content: dict[int, list[int]] = {}

    def seal(self, tokens: Sequence[int], start: int, stop: int) -> list[int] | None:
        count = -(-(stop - start) // SIZE)
        while self.allocator.free < count and self.allocator.allocated < 40:
            self.allocator.add_slab()
        ids = self.allocator.allocate(count)
        for i, block in enumerate(ids or []):
            self.content[block] = list(tokens[start + i * SIZE : min(start + (i + 1) * SIZE, stop)])
        return ids

    def retain(self, blocks: Sequence[int]) -> None:
        self.allocator.retain(blocks)

    def refcount(self, block: int) -> int:
        return self.allocator.refcount(block)

    def release(self, blocks: Sequence[int]) -> None:
        for block in self.allocator.release(blocks):
            del self.content[block]

    def read(self, blocks: Sequence[int], tokens: int) -> list[int]:
        return [token for block in blocks for token in self.content[block]][:tokens]


class BlockStoreMachine(RuleBasedStateMachine):
    partial = True

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.pool = RememberingPool(12)
        self.store = BlockStore(
            self.pool,
            Budget(100, 4, 50, 0, 0, 0),
            lambda: self.now,
            lambda event, **details: None,
            RejectLog(lambda: self.now),
            min_prefix=MIN_PREFIX,
            partial=self.partial,
        )
        self.adopted: list[tuple[AdoptedBlocks, list[int]]] = []

    @rule(by=st.integers(0, 30))
    def wait(self, by: int) -> None:
        self.now += by

    @rule(bucket=BUCKETS, session=SESSIONS, tokens=TOKENS)
    def insert(self, bucket, session, tokens) -> None:
        before = self.store.entries()
        live = self.pool.allocator.live
        got = self.store.insert(
            bucket, session, tokens, lambda start, stop: self.pool.seal(tokens, start, stop)
        )
        if got is None:
            newest = self.store.entries()[-1]
            assert (newest.bucket, newest.session, list(newest.tokens)) == (bucket, session, tokens)
        elif got is not RejectReason.LAYOUT_CONSTRAINTS:
            assert self.store.entries() == before
            assert self.pool.allocator.live == live
            room = self.store.budget.capacity_bytes // self.pool.bytes_per_block
            assert got is (
                RejectReason.DISABLED
                if not self.store.enabled
                else RejectReason.PREFIX_TOO_SHORT
                if len(tokens) < MIN_PREFIX
                else RejectReason.OVERSIZED
            )
            assert got is not RejectReason.OVERSIZED or -(-len(tokens) // SIZE) > room

    @rule(bucket=BUCKETS, session=SESSIONS, tokens=TOKENS, short=st.integers(0, 2))
    def adopt(self, bucket, session, tokens, short) -> None:
        limit = max(0, len(tokens) - short)
        depths = {id(e): list(e.tokens) for e in self.store.entries()}
        got = self.store.adopt(self.store.match(Query.of(bucket, session, tokens, limit)))
        live = [e for e in self.store.entries() if e.bucket == bucket]
        best = max((self.reach(e, tokens[:limit]) for e in live), default=0)
        if not self.store.enabled or best < MIN_PREFIX:
            assert got is None
            return
        assert got is not None
        assert got.matched == best
        assert self.pool.read(got.blocks, best) == tokens[:best]
        # Whatever part of it matched, the entry is as deep as before.
        assert list(got.entry.tokens) == depths[id(got.entry)]
        assert self.store.entries()[-1] is got.entry
        self.adopted.append((got, tokens[:best]))

    def reach(self, entry: BlockEntry, tokens: list[int]) -> int:
        common = common_length(entry.tokens, as_tokens(tokens))
        return common if self.partial or common == len(entry.tokens) else 0

    @rule(which=st.integers(0, 10))
    def finish(self, which: int) -> None:
        if self.adopted:
            match, _ = self.adopted.pop(which % len(self.adopted))
            self.pool.release(match.blocks)

    @rule(session=st.none() | SESSIONS, dry_run=st.booleans())
    def flush(self, session, dry_run) -> None:
        entries, held = self.store.entries(), self.store.bytes
        report = self.store.flush(session, dry_run=dry_run)
        gone = [e for e in entries if session in (None, e.session)]
        assert report.entries == len(gone)
        kept = entries if dry_run else [e for e in entries if e not in gone]
        assert self.store.entries() == kept
        left = {block for e in entries if e not in gone for block in e.table}
        assert report.bytes == held - len(left) * self.pool.bytes_per_block

    @rule(
        capacity=st.none() | st.integers(0, 120),
        entries=st.none() | st.integers(0, 5),
        ttl=st.none() | st.integers(0, 60),
        dry_run=st.booleans(),
    )
    def resize(self, capacity, entries, ttl, dry_run) -> None:
        before, held = self.store.entries(), self.store.budget
        report = self.store.resize(BudgetChange(capacity, entries, ttl), dry_run=dry_run)
        if dry_run:
            assert (self.store.entries(), self.store.budget) == (before, held)
            trial = report
            report = self.store.resize(BudgetChange(capacity, entries, ttl))
            assert (trial.evicted_entries, trial.evicted_bytes) == (
                report.evicted_entries,
                report.evicted_bytes,
            ) or held.ttl_seconds
        # Who was used last stays: what is left is the newest part of what there was.
        left = self.store.entries()
        assert left == before[len(before) - len(left) :]

    @rule()
    def sweep(self) -> None:
        self.store.sweep()
        ttl = self.store.budget.ttl_seconds
        assert all(not ttl or self.now - e.last_used < ttl for e in self.store.entries())

    @rule()
    def compact(self) -> None:
        moves = self.pool.allocator.plan_compaction()
        self.pool.allocator.move(moves)
        content = self.pool.content
        self.pool.content = {moves.get(b, b): tokens for b, tokens in content.items()}
        self.store.remap(moves)
        self.adopted = [
            (AdoptedBlocks(m.entry, m.matched, tuple(moves.get(b, b) for b in m.blocks)), tokens)
            for m, tokens in self.adopted
        ]

    @invariant()
    def books_balance(self) -> None:
        self.store.check()
        tables = [*self.store.tables(), *(match.blocks for match, _ in self.adopted)]
        self.pool.allocator.check(tables)
        assert self.store.bytes == 10 * len({b for t in self.store.tables() for b in t})

    @invariant()
    def what_is_stored_and_adopted_is_what_was_put_in(self) -> None:
        for entry in self.store.entries():
            assert self.pool.read(entry.table, len(entry.tokens)) == list(entry.tokens)
        for match, tokens in self.adopted:
            assert self.pool.read(match.blocks, match.matched) == tokens


class WholeEntriesMachine(BlockStoreMachine):
    partial = False


_SETTINGS = settings(max_examples=60, stateful_step_count=60)
TestBlockStore = BlockStoreMachine.TestCase
TestBlockStore.settings = _SETTINGS
TestWholeEntries = WholeEntriesMachine.TestCase
TestWholeEntries.settings = _SETTINGS
