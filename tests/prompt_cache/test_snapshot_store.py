"""The promises of the store of snapshots, one by one; and the store against a naive one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mlxceld.kv.blocks import BlockAllocator
from mlxceld.prompt_cache.explain import explain
from mlxceld.prompt_cache.key import Bucket, session_hash
from mlxceld.prompt_cache.match import Query
from mlxceld.prompt_cache.prompt_cache import PromptCache
from mlxceld.prompt_cache.rejects import RejectLog, RejectReason
from mlxceld.prompt_cache.reports import Budget, BudgetChange
from mlxceld.prompt_cache.snapshot_entry import OUTDATES, Origin
from mlxceld.prompt_cache.snapshot_store import SnapshotStore
from mlxceld.prompt_cache.stats import fill
from mlxceld.prompt_cache.trace import Trace
from mlxceld.telemetry.cache_stats import CacheStats

BUCKET = Bucket("m", "sig")


class CountedPool:
    """Blocks of two tokens and one byte, with the real allocator's counts."""

    block_size = 2
    bytes_per_block = 1

    def __init__(self) -> None:
        self.allocator = BlockAllocator(8, 10_000)

    def seal(self, start: int, stop: int) -> list[int] | None:
        count = -(-(stop - start) // self.block_size)
        while self.allocator.free < count:
            self.allocator.add_slab()
        return self.allocator.allocate(count)

    def refcount(self, block: int) -> int:
        return self.allocator.refcount(block)

    def retain(self, blocks: Any) -> None:
        self.allocator.retain(blocks)

    def release(self, blocks: Any) -> None:
        self.allocator.release(blocks)


def _no_blocks(start: int, stop: int) -> list[int]:
    raise AssertionError("sealed without a pool")


class Bench:
    """A store of states alone, or with blocks too, and what it reports to."""

    def __init__(
        self,
        capacity: int = 1000,
        entries: int = 10,
        ttl: float = 60.0,
        *,
        blocks: bool = False,
        **options: Any,
    ) -> None:
        self.now = 0.0
        self.rejects = RejectLog(lambda: int(self.now * 1000))
        self.trace = Trace(lambda: int(self.now * 1000))
        self.pool = CountedPool() if blocks else None
        self.seal = _no_blocks if self.pool is None else self.pool.seal
        self.store: SnapshotStore[str] = SnapshotStore(
            self.pool,
            Budget(0, 0, 0.0, capacity, entries, ttl),
            lambda: self.now,
            self.trace.emit,
            self.rejects,
            **options,
        )
        self.counters = self.store.counters

    def put(
        self,
        tokens: list[int],
        nbytes: int = 10,
        session: str | None = "s",
        origin: Origin = Origin.BOUNDARY,
        bucket: Bucket = BUCKET,
        seq_id: int = 7,
    ) -> RejectReason | None:
        self.now += 1
        return self.store.insert(
            bucket, session, tokens, origin, f"{tokens}", nbytes, self.seal, seq_id=seq_id
        )

    def get(self, tokens: list[int], session: str = "s", bucket: Bucket = BUCKET) -> str | None:
        self.now += 1
        entry = self.store.adopt(
            self.store.match(Query.of(bucket, session or "", tokens, len(tokens)))
        )
        if entry is not None and self.pool is not None:
            self.pool.release(entry.table)
        return None if entry is None else entry.state

    def held(self) -> list[list[int]]:
        return [list(entry.tokens) for entry in self.store.entries()]

    def check(self) -> None:
        self.store.check()
        if self.pool is not None:
            self.pool.allocator.check(self.store.tables())


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_conversation_collapses_to_its_newest_boundary(bench: Bench) -> None:
    for turn in range(1, 6):
        assert bench.put(list(range(turn * 3))) is None
        assert bench.held() == [list(range(turn * 3))]
        assert bench.counters.supersedes == turn - 1
    assert bench.counters.evictions_lru == bench.counters.replaced == 0
    assert bench.store.bytes == 10
    bench.check()


def test_two_sessions_do_not_touch_each_other(bench: Bench) -> None:
    bench.put([1, 2], session="a")
    bench.put([1, 2, 3], session="b")
    assert bench.held() == [[1, 2], [1, 2, 3]]
    assert bench.counters.supersedes == 0


def test_a_caller_without_session_supersedes_nothing(bench: Bench) -> None:
    bench.put([1, 2], session=None)
    bench.put([1, 2, 3], session=None)
    assert len(bench.store) == 2
    assert bench.counters.supersedes == 0
    bench.check()


def test_the_anonymous_session_is_a_session_like_any_other(bench: Bench) -> None:
    bench.put([1, 2], session="__mlxcel_anon__")
    bench.put([1, 2, 3], session="__mlxcel_anon__")
    assert bench.counters.supersedes == 1


@pytest.mark.parametrize(
    "later", [[1, 2, 3], [1, 2, 4, 5], [1, 2], [9]], ids=["equal", "forked", "shorter", "other"]
)
def test_only_a_strict_extension_supersedes(bench: Bench, later: list[int]) -> None:
    bench.put([1, 2, 3])
    bench.put(later)
    assert bench.counters.supersedes == 0
    assert later in bench.held()


def test_other_buckets_are_other_namespaces(bench: Bench) -> None:
    bench.put([1, 2])
    bench.put([1, 2, 3], bucket=Bucket("m", "other"))
    assert len(bench.store) == 2
    assert bench.get([1, 2, 3], bucket=Bucket("m", "third")) is None


@pytest.mark.parametrize("old", Origin)
@pytest.mark.parametrize("new", Origin)
def test_origins_supersede_their_own_kind(bench: Bench, old: Origin, new: Origin) -> None:
    bench.put([1, 2], origin=old)
    bench.put([1, 2, 3], origin=new)
    # What was prefetched is outdated by the boundary of the turn that it was for, too.
    outdated = old is new or (new is Origin.BOUNDARY and old is Origin.PREFETCH)
    assert (old in OUTDATES[new]) is outdated
    assert bench.counters.supersedes == int(outdated)
    assert len(bench.store) == (1 if outdated else 2)
    bench.check()


def test_origins_with_the_same_tokens_are_entries_of_their_own(bench: Bench) -> None:
    for origin in Origin:
        bench.put([1, 2], origin=origin)
    assert [bench.store.count(origin) for origin in Origin] == [1, 1, 1, 1]
    assert bench.counters.replaced == 0
    bench.check()


def test_an_extension_that_would_not_fit_beside_its_ancestor(bench: Bench) -> None:
    bench = Bench(capacity=10_000)
    bench.put([1, 2], nbytes=8000)
    assert bench.put([1, 2, 3], nbytes=9000) is None
    assert bench.held() == [[1, 2, 3]]
    assert (bench.counters.supersedes, bench.counters.evictions_lru) == (1, 0)
    assert bench.store.bytes == 9000


def test_what_is_too_large_destroys_nothing(bench: Bench) -> None:
    bench.put([1, 2])
    bench.put([1, 2, 3, 4], origin=Origin.COMPLETION)
    before = bench.held()
    for number, tokens in enumerate(([1, 2], [1, 2, 3], [5])):
        assert bench.put(tokens, nbytes=1001, seq_id=number) is RejectReason.OVERSIZED
    assert bench.held() == before
    assert bench.counters.rejections_oversized == bench.rejects.counts[RejectReason.OVERSIZED] == 3
    assert bench.counters.supersedes == bench.counters.replaced == bench.counters.evictions_lru == 0
    bench.check()


def test_blocks_count_towards_what_is_too_large() -> None:
    bench = Bench(capacity=14, blocks=True)
    assert bench.put(list(range(9))) is RejectReason.OVERSIZED  # 10 bytes and 5 blocks
    assert bench.put(list(range(8))) is None
    assert bench.store.bytes == 14
    bench.check()


def test_an_identical_repeat_replaces(bench: Bench) -> None:
    bench.put([1, 2, 3])
    bench.get([1, 2, 3, 4])
    bench.put([1, 2, 3])
    assert (bench.counters.inserts, bench.counters.replaced) == (2, 1)
    assert bench.counters.supersedes == bench.counters.evictions_lru == 0
    assert [entry.hits for entry in bench.store.entries()] == [1]
    assert bench.store.bytes == 10
    bench.check()


def test_the_longest_exact_prefix_of_the_session_is_adopted(bench: Bench) -> None:
    bench.put([1, 2], origin=Origin.BOUNDARY)
    bench.put([1, 2, 3, 4], origin=Origin.COMPLETION)
    assert bench.get([1, 2, 3, 4, 5]) == "[1, 2, 3, 4]"
    # Part of an entry is no state.
    assert bench.get([1, 2, 3, 9]) == "[1, 2]"
    assert bench.get([1, 9]) is None
    assert bench.get([1, 2, 3], session="other") is None
    counters = bench.counters
    assert (counters.lookups, counters.hits, counters.misses) == (4, 2, 2)
    bench.check()


def test_a_head_is_adopted_by_every_session_and_stored_once(bench: Bench) -> None:
    bench.put([1, 2], session="a", origin=Origin.HEAD)
    assert bench.get([1, 2, 3], session="b") == "[1, 2]"
    assert bench.store.has_head(BUCKET, [1, 2])
    assert not bench.store.has_head(BUCKET, [1, 2, 3])
    bench.put([1, 2], session="b", origin=Origin.HEAD)
    assert bench.store.count(Origin.HEAD) == 1
    # A longer head of one session does not take the shorter one of another away.
    bench.put([1, 2, 3], session="c", origin=Origin.HEAD)
    assert bench.store.count(Origin.HEAD) == 2
    bench.check()


def test_a_head_that_conversations_go_on_from_stays(bench: Bench) -> None:
    bench = Bench(entries=3)
    bench.put([1], session="a", origin=Origin.HEAD)
    bench.put([1, 2], session="a")
    bench.put([9], session="b")
    assert bench.get([1, 2, 3], session="a") == "[1, 2]"  # not the head itself
    bench.put([7], session="c")
    assert bench.held() == [[1], [1, 2], [7]]
    assert bench.counters.evictions_lru == 1


def test_the_entry_cap_and_the_bytes_evict_the_least_recently_used() -> None:
    bench = Bench(capacity=30, entries=3)
    for token in range(4):
        bench.put([token])
    assert bench.held() == [[1], [2], [3]]
    bench.get([1, 5])
    bench.put([8], nbytes=20)
    assert bench.held() == [[1], [8]]
    assert bench.counters.evictions_lru == 3
    bench.check()


def test_what_was_idle_too_long_goes(bench: Bench) -> None:
    bench.put([1])
    bench.put([2])
    bench.now = 61.0
    assert bench.store.sweep() == 1
    assert bench.held() == [[2]]
    assert bench.counters.evictions_ttl == 1
    assert bench.get([2]) is None  # 62 seconds: never adopted once it is over
    assert bench.counters.evictions_ttl == 2


def test_a_flush_of_one_session_by_key_and_by_hash(bench: Bench) -> None:
    for session, tokens in (("a", [1]), ("b", [2]), ("c", [3])):
        bench.put(tokens, session=session)
    assert bench.store.flush("a", dry_run=True).entries == 1
    assert len(bench.store) == 3
    bench.store.flush("a")
    report = bench.store.flush(session_hash("b"))
    assert (report.entries, report.bytes, report.dry_run) == (1, 10, False)
    assert bench.held() == [[3]]
    assert bench.counters.evictions_flush == 2


def test_a_resize_evicts_down_to_the_new_limits(bench: Bench) -> None:
    for token in range(6):
        bench.put([token])
    change = BudgetChange(snapshot_capacity_bytes=30)
    dry = bench.store.resize(change, dry_run=True)
    assert (dry.evicted_entries, dry.evicted_bytes, len(bench.store)) == (3, 30, 6)
    report = bench.store.resize(change)
    assert (report.evicted_entries, report.evicted_bytes) == (3, 30)
    assert bench.held() == [[3], [4], [5]]
    # The other store's limits are not this one's.
    assert bench.store.resize(BudgetChange(capacity_bytes=1)).evicted_entries == 0
    assert bench.store.resize(BudgetChange(snapshot_max_entries=1)).evicted_entries == 2
    assert bench.store.resize(BudgetChange(snapshot_max_entries=0)).evicted_entries == 1
    assert not bench.store.enabled
    assert bench.put([1]) is RejectReason.DISABLED
    assert bench.get([1, 2]) is None
    assert bench.counters.evictions_resize == 6
    bench.check()


def test_blocks_that_a_conversation_shares_count_once() -> None:
    bench = Bench(blocks=True)
    bench.put([1, 2, 3, 4, 5], session="a", origin=Origin.HEAD)
    bench.put([1, 2, 3, 4, 5, 6, 7], session="a")
    bench.put([1, 2, 3, 4, 5, 8], session="b")
    tables = bench.store.tables()
    assert [table[:2] for table in tables] == [tables[0][:2]] * 3
    # Three states of 10; two shared blocks, and one, two and one of their own.
    assert bench.store.bytes == 30 + 2 + 1 + 2 + 1
    bench.check()
    report = bench.store.flush("a")
    assert report.bytes == 20 + 3
    assert bench.store.bytes == 10 + 3
    bench.check()


def test_blocks_come_from_an_ancestor_that_goes() -> None:
    bench = Bench(blocks=True)
    bench.put([1, 2, 3, 4])
    (table,) = bench.store.tables()
    bench.put([1, 2, 3, 4, 5])
    assert bench.store.tables()[0][:2] == table
    assert bench.counters.supersedes == 1
    bench.check()


@pytest.mark.parametrize("fault", [None, MemoryError])
def test_blocks_that_cannot_be_sealed_leave_nothing_behind(fault: type[Exception] | None) -> None:
    bench = Bench(blocks=True)
    bench.put([1, 2, 3, 4], session="other")

    def seal(start: int, stop: int) -> None:
        if fault is not None:
            raise fault

    arguments = (BUCKET, "s", [1, 2, 3, 4, 5], Origin.BOUNDARY, "state", 10, seal)
    if fault is None:
        assert bench.store.insert(*arguments) is RejectReason.LAYOUT_CONSTRAINTS
    else:
        with pytest.raises(fault):
            bench.store.insert(*arguments)
    assert bench.held() == [[1, 2, 3, 4]]
    bench.check()


class _Watched(dict[int, Any]):
    """Entries that tell how many of them were looked at in passing."""

    looked_at = 0

    def values(self) -> Any:
        for entry in super().values():
            self.looked_at += 1
            yield entry


def test_ancestors_are_found_without_looking_at_other_conversations() -> None:
    bench = Bench(capacity=10**9, entries=10**6, ttl=0)
    for talk in range(200):
        bench.put([talk, 1, 2], session=f"s{talk}")
    watched = _Watched(bench.store._by_use)
    bench.store._by_use = watched
    bench.put([7, 1, 2, 3], session="s7")
    assert bench.counters.supersedes == 1
    assert watched.looked_at <= 1  # the oldest, for its age


def test_events_and_numbers(bench: Bench) -> None:
    bench.put([1, 2], origin=Origin.HEAD)
    bench.put([1, 2, 3])
    bench.put([1, 2, 3, 4], seq_id=3)
    bench.get([1, 2, 3, 4, 5])
    bench.get([9])
    events = [event.line() for event in bench.trace.tail(9)]
    assert [line.split()[0] for line in events] == [
        "apc_event=store",
        "apc_event=store",
        "apc_event=supersede",
        "apc_event=store",
        "apc_event=adopt",
    ]
    assert events[2] == (
        f"apc_event=supersede seq_id=3 session={session_hash('s')}"
        " matched_len=3 context_len=4 bytes=10 store=snapshots"
    )
    cache = PromptCache(bench.store.budget, lambda: 0.0, bench.trace.emit, bench.rejects)
    cache.add(bench.store)
    stats = fill(CacheStats(), cache)
    assert (stats.snapshot_enabled, stats.snapshot_entries, stats.snapshot_bytes) == (True, 2, 20)
    assert (stats.snapshot_entries_head, stats.snapshot_entries_boundary) == (1, 1)
    assert (stats.snapshot_inserts, stats.snapshot_supersedes) == (3, 1)
    assert (stats.snapshot_lookups, stats.snapshot_hit_rate) == (2, 0.5)
    assert stats.cache_bytes_total == 20
    assert (stats.entries, stats.lookups, stats.bytes) == (0, 0, 0)


def test_a_request_is_explained_by_what_it_would_adopt(bench: Bench) -> None:
    bench.put([1, 2], origin=Origin.HEAD, session="other")
    bench.put([1, 2, 3, 4])
    before = (bench.counters.lookups, bench.counters.hits)
    told = explain(bench.store, BUCKET, "s", [1, 2, 3, 9])
    assert (told.outcome, told.store, told.kind) == ("hit", "snapshots", "snapshot")
    assert (told.reused_tokens, told.diverges_at) == (2, 3)
    assert told.entry is not None
    assert (told.entry.tokens, told.entry.matched_tokens) == (4, 3)
    told = explain(bench.store, BUCKET, "s", [1, 9])
    assert (told.outcome, told.reason) == ("reject", RejectReason.MODE_MISMATCH)
    assert (bench.counters.lookups, bench.counters.hits) == before
    # As the adoption itself then records it.
    assert bench.get([1, 9]) is None
    assert bench.rejects.counts[RejectReason.MODE_MISMATCH] == 1


def test_a_store_that_is_switched_off_stays_off(bench: Bench) -> None:
    bench.put([1])
    bench.store.switch_off()
    bench.store.resize(BudgetChange(snapshot_capacity_bytes=10**6))
    assert not bench.store.enabled
    assert bench.put([1]) is RejectReason.DISABLED
    assert len(bench.store) == 0
    bench.check()


TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


class SnapshotMachine(RuleBasedStateMachine):
    """Whatever is done in whatever order, the books balance and the naive store agrees."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(capacity=60, entries=5, ttl=50.0, blocks=True)
        self.store = self.bench.store

    @rule(by=st.integers(0, 30))
    def wait(self, by: int) -> None:
        self.bench.now += by

    @rule(
        tokens=TOKENS,
        session=st.sampled_from(["x", "y", None]),
        origin=st.sampled_from(list(Origin)),
        nbytes=st.integers(0, 70),
    )
    def put(self, tokens, session, origin, nbytes) -> None:
        before = self.store.entries()
        got = self.bench.put(tokens, nbytes, session, origin)
        if got is not None:
            assert self.store.entries() == before
            return
        newest = self.store.entries()[-1]
        assert (list(newest.tokens), newest.origin) == (tokens, origin)
        for entry in self.store.entries():
            extended = list(newest.tokens[: len(entry.tokens)]) == list(entry.tokens)
            own = session is not None and entry.session == session
            if extended and own and entry is not newest and entry.origin in OUTDATES[origin]:
                raise AssertionError(f"{entry} is still there beside {newest}")

    @rule(tokens=TOKENS, session=st.sampled_from(["x", "y"]))
    def get(self, tokens, session) -> None:
        now = self.bench.now + 1
        fitting = [
            len(entry.tokens)
            for entry in self.store.entries()
            if list(entry.tokens) == tokens[: len(entry.tokens)]
            and (entry.session == session or entry.origin is Origin.HEAD)
            and now - entry.last_used < 50
        ]
        got = self.bench.get(tokens, session)
        want = max(fitting, default=0) if self.store.enabled else 0
        assert got == (f"{tokens[:want]}" if want else None)

    @rule(session=st.sampled_from(["x", "y", None]))
    def flush(self, session) -> None:
        before = self.store.bytes
        report = self.store.flush(session)
        assert before - self.store.bytes == report.bytes

    @rule(capacity=st.integers(0, 80), entries=st.integers(0, 6))
    def resize(self, capacity, entries) -> None:
        change = BudgetChange(snapshot_capacity_bytes=capacity, snapshot_max_entries=entries)
        before = self.store.bytes
        self.store.sweep()
        after_sweep = self.store.bytes
        report = self.store.resize(change)
        assert before >= after_sweep
        assert after_sweep - self.store.bytes == report.evicted_bytes

    @invariant()
    def books_balance(self) -> None:
        self.bench.check()


TestSnapshotMachine = SnapshotMachine.TestCase
TestSnapshotMachine.settings = settings(max_examples=40, stateful_step_count=30)
