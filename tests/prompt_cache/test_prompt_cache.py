"""A prompt cache over three stores: one budget, one generation, and matches that stay true."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mlxceld.kv.blocks import BlockAllocator
from mlxceld.prompt_cache.block_store import BlockStore
from mlxceld.prompt_cache.dense_store import DenseStore
from mlxceld.prompt_cache.key import Bucket
from mlxceld.prompt_cache.match import Match, Purpose, Query
from mlxceld.prompt_cache.prompt_cache import PromptCache
from mlxceld.prompt_cache.radix import as_tokens
from mlxceld.prompt_cache.rejects import RejectLog
from mlxceld.prompt_cache.reports import Budget, BudgetChange, GenerationConflictError, PinError
from mlxceld.prompt_cache.snapshot_entry import Origin
from mlxceld.prompt_cache.snapshot_store import SnapshotStore

BUCKET = Bucket("m", "sig")
BUDGET = Budget(120, 6, 50, 60, 5, 50)


class Pool:
    """Three tokens a block, ten bytes each; the references are the real allocator's."""

    block_size = 3
    bytes_per_block = 10

    def __init__(self) -> None:
        self.allocator = BlockAllocator(64, 64)
        self.allocator.add_slab()
        self.retain, self.release = self.allocator.retain, self.allocator.release
        self.refcount = self.allocator.refcount

    def seal(self, start: int, stop: int) -> list[int] | None:
        return self.allocator.allocate(-(-(stop - start) // self.block_size))


class Bench:
    """A cache with a store of each kind, and the clock of all of them."""

    def __init__(self, budget: Budget = BUDGET, min_prefix: int = 2) -> None:
        self.now = 0.0
        self.pool = Pool()
        self.cache = PromptCache(
            budget,
            lambda: self.now,
            lambda event, **details: None,
            RejectLog(lambda: 0),
            min_prefix=min_prefix,
        )
        terms: Any = (budget, self.cache.clock, self.cache.on_event, self.cache.rejects)
        self.blocks = self.cache.add(BlockStore(self.pool, *terms, min_prefix=min_prefix))
        self.whole: DenseStore[str] = self.cache.add(DenseStore(*terms, min_prefix=min_prefix))
        self.kept: SnapshotStore[str] = self.cache.add(
            SnapshotStore(None, *terms, min_prefix=min_prefix)
        )

    def put(self, session: str, tokens: list[int], *, can_trim: bool = True) -> None:
        self.blocks.insert(BUCKET, session, tokens, self.pool.seal)
        self.whole.insert(BUCKET, session, tokens, "row", 4 * len(tokens), can_trim=can_trim)

    def keep(self, session: str, tokens: list[int], origin: Origin) -> None:
        self.kept.insert(BUCKET, session, tokens, origin, "state", 9, lambda *_: [])


def test_one_order_goes_to_every_store_or_to_those_of_a_name():
    bench = Bench()
    bench.put("a", [1, 2, 3])
    bench.put("b", [1, 2, 4])
    bench.keep("a", [1, 2], Origin.BOUNDARY)
    assert bench.cache.bytes == sum(store.bytes for store in bench.cache.stores) > 0
    assert bench.cache.entries().total == 5
    assert bench.cache.entries("snapshots").total == 1
    assert bench.cache.entries("kv", session="a").total == 2
    assert bench.cache.flush("snapshots", dry_run=True).entries == 1
    assert bench.cache.flush(session="a").entries == 3
    assert bench.cache.flush("snapshots").entries == 0
    assert bench.cache.flush().entries == 2
    assert bench.cache.bytes == 0


def test_a_resize_of_another_generation_changes_nothing():
    bench = Bench()
    bench.put("a", [1, 2, 3])
    dry = bench.cache.resize(BudgetChange(max_entries=0), dry_run=True)
    assert (dry.evicted_entries, dry.generation) == (2, 0)
    report = bench.cache.resize(BudgetChange(max_entries=5), generation=0)
    assert (report.generation, report.before, report.after.max_entries) == (1, BUDGET, 5)
    with pytest.raises(GenerationConflictError) as caught:
        bench.cache.resize(BudgetChange(max_entries=0), generation=0)
    assert caught.value.current == bench.cache.generation == 1
    assert bench.cache.entries().total == 2
    bench.cache.check()


def test_a_budget_is_set_before_there_are_stores():
    cache = PromptCache(BUDGET, lambda: 0.0, lambda *a, **k: None, RejectLog(lambda: 0))
    with pytest.raises(PinError, match="no store"):
        cache.pin(BUCKET, "s", as_tokens([1]))
    cache.begin_with(Budget(7, 7, 7, 7, 7, 7))
    assert cache.budget.capacity_bytes == 7
    with pytest.raises(RuntimeError):
        Bench().cache.begin_with(BUDGET)


def test_whichever_store_has_a_prompt_pins_it_and_lets_it_go_by_its_digest():
    bench = Bench()
    bench.keep("a", [1, 2, 3], Origin.BOUNDARY)
    report = bench.cache.pin(BUCKET, "a", as_tokens([1, 2, 3]))
    bench.now = 60.0
    assert bench.cache.sweep() == 0
    assert bench.cache.unpin("0" * 16) is None
    unpinned = bench.cache.unpin(report.digest)
    assert unpinned is not None
    assert unpinned.pins == 0
    assert bench.cache.sweep() == 1


def test_the_store_that_serves_most_explains():
    bench = Bench()
    bench.put("a", [1, 2, 3])
    bench.keep("a", [1, 2, 3, 4, 5], Origin.BOUNDARY)
    told = bench.cache.explain(BUCKET, "a", [1, 2, 3, 4, 5, 6])
    assert (told.store, told.reused_tokens) == ("snapshots", 5)
    assert bench.cache.explain(BUCKET, "b", [1, 2, 3, 4, 5, 6]).reused_tokens == 3


def test_what_is_switched_off_or_closed_holds_nothing():
    bench = Bench()
    bench.put("a", [1, 2, 3])
    bench.cache.switch_off()
    bench.put("a", [1, 2, 3])
    assert (bench.cache.enabled, bench.cache.bytes) == (False, 0)
    bench.cache.close()
    assert bench.cache.stores == ()


def test_a_look_up_for_the_background_is_told_and_not_counted():
    bench = Bench()
    bench.put("a", [1, 2, 3])
    query = Query.of(BUCKET, "a", [1, 2, 3, 4])
    adopted = bench.blocks.adopt(bench.blocks.match(query), purpose=Purpose.BACKGROUND)
    assert adopted is not None
    assert (bench.blocks.counters.lookups, bench.blocks.counters.hits) == (0, 0)
    assert bench.blocks.entries()[0].hits == 0
    bench.pool.release(adopted.blocks)
    bench.cache.check()


TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)
SESSIONS = st.sampled_from(["x", "y"])


class CacheMachine(RuleBasedStateMachine):
    """Whatever happens while a match is carried, renewed it is what a look-up finds."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.cache = self.bench.cache
        self.carried: list[tuple[Any, Match[Any]]] = []

    @rule(by=st.integers(0, 30))
    def wait(self, by: int) -> None:
        self.bench.now += by

    @rule(session=SESSIONS, tokens=TOKENS, can_trim=st.booleans())
    def put(self, session: str, tokens: list[int], can_trim: bool) -> None:
        self.bench.put(session, tokens, can_trim=can_trim)

    @rule(session=SESSIONS, tokens=TOKENS, origin=st.sampled_from(list(Origin)))
    def keep(self, session: str, tokens: list[int], origin: Origin) -> None:
        self.bench.keep(session, tokens, origin)

    @rule(session=SESSIONS, tokens=TOKENS)
    def look_up(self, session: str, tokens: list[int]) -> None:
        query = Query.of(BUCKET, session, tokens)
        self.carried += [(store, store.match(query)) for store in self.cache.stores]

    @rule(which=st.integers(0, 50))
    def renew(self, which: int) -> None:
        if self.carried:
            store, match = self.carried.pop(which % len(self.carried))
            renewed = store.renew(match)
            fresh = store.match(match.query)
            assert renewed.matched == fresh.matched
            assert (renewed.entry is None) == (fresh.entry is None)
            entry = renewed.entry
            if entry is not None:
                assert any(entry is stored for stored in store.entries())
                assert entry.tokens[: renewed.matched] == match.query.tokens[: renewed.matched]
                assert renewed.matched < len(match.query.tokens)
            self.carried.append((store, renewed))

    @rule(session=SESSIONS, tokens=TOKENS)
    def take(self, session: str, tokens: list[int]) -> None:
        whole = self.bench.whole
        whole.take(whole.match(Query.of(BUCKET, session, tokens)))

    @rule(session=SESSIONS, tokens=TOKENS)
    def pin(self, session: str, tokens: list[int]) -> None:
        before = self.cache.entries()
        try:
            report = self.cache.pin(BUCKET, session, as_tokens(tokens))
        except PinError:
            assert self.cache.entries() == before
        else:
            assert report.pins == 1
            assert self.cache.unpin(report.digest) is not None

    @rule(name=st.sampled_from(["all", "kv", "snapshots"]), dry_run=st.booleans())
    def flush(self, name: str, dry_run: bool) -> None:
        before = self.cache.entries().total
        gone = self.cache.entries(name).total
        assert self.cache.flush(name, dry_run=dry_run).entries == gone
        assert self.cache.entries().total == before - (0 if dry_run else gone)

    @rule(
        capacity=st.none() | st.integers(0, 150),
        entries=st.none() | st.integers(0, 5),
        kept=st.none() | st.integers(0, 60),
        given=st.none() | st.integers(0, 3),
    )
    def resize(self, capacity: int | None, entries: int | None, kept: int | None, given: Any):
        changes = BudgetChange(capacity, entries, None, kept)
        before = (self.cache.budget, self.cache.generation)
        try:
            report = self.cache.resize(changes, generation=given)
        except GenerationConflictError:
            assert given != before[1]
            assert before == (self.cache.budget, self.cache.generation)
        else:
            assert (report.before, report.generation) == (before[0], before[1] + 1)
            assert report.after == self.cache.budget

    @rule()
    def sweep(self) -> None:
        before = self.cache.entries().total
        assert self.cache.sweep() == before - self.cache.entries().total

    @invariant()
    def the_books_balance(self) -> None:
        self.cache.check()
        held = {block for entry in self.bench.blocks.entries() for block in entry.table}
        assert self.bench.blocks.bytes == 10 * len(held)
        assert self.cache.bytes == sum(store.bytes for store in self.cache.stores)


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPromptCacheAgainstFreshLookUps = CacheMachine.TestCase
