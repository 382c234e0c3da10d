"""The store's promises, one by one."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from mlxceld.prompt_cache.dense_store import DenseStore
from mlxceld.prompt_cache.key import Bucket, session_hash
from mlxceld.prompt_cache.match import Query
from mlxceld.prompt_cache.prompt_cache import PromptCache
from mlxceld.prompt_cache.rejects import RejectLog, RejectReason
from mlxceld.prompt_cache.reports import Budget, BudgetChange
from mlxceld.prompt_cache.stats import fill
from mlxceld.prompt_cache.trace import Trace
from mlxceld.telemetry.cache_stats import CacheStats

BUCKET = Bucket("m", "sig")
BUDGET = Budget(1000, 10, 60.0, 0, 0, 0.0)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A store with its clock, trace and rejects at hand."""

    def __init__(self, budget: Budget = BUDGET, *, enabled: bool = True, min_prefix: int = 1):
        self.clock = Clock()
        self.rejects = RejectLog(lambda: int(self.clock.now * 1000))
        self.trace = Trace(lambda: int(self.clock.now * 1000))
        self.store: DenseStore[str] = DenseStore(
            budget,
            self.clock,
            self.trace.emit,
            self.rejects,
            enabled=enabled,
            min_prefix=min_prefix,
        )
        self.cache = PromptCache(budget, self.clock, self.trace.emit, self.rejects, enabled=enabled)
        self.cache.add(self.store)

    def put(self, tokens, payload="kv", nbytes=10, session="s", bucket=BUCKET, **kwargs):
        return self.store.insert(bucket, session, tokens, payload, nbytes, **kwargs)

    def take(self, tokens, session="s", bucket=BUCKET, max_len=None):
        limit = len(tokens) - 1 if max_len is None else max_len
        return self.store.take(self.store.match(Query.of(bucket, session, tokens, limit)))

    def events(self) -> list[str]:
        return [event.event for event in self.trace.tail(256)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_an_entry_is_adopted_once(bench):
    assert bench.put([1, 2, 3], "kv") is None
    taken = bench.take([1, 2, 3, 4])
    assert (taken.payload, taken.matched, taken.entry.hits) == ("kv", 3, 1)
    assert bench.take([1, 2, 3, 4]) is None
    counters = bench.store.counters
    assert (counters.lookups, counters.hits, counters.misses, counters.consumed) == (2, 1, 1, 1)
    assert bench.store.bytes == 0
    bench.store.check()


def test_the_longest_contained_prefix_wins_over_the_own_session(bench):
    bench.put([1], "short", session="mine")
    bench.put([1, 2], "long", session="other")
    assert bench.take([1, 2, 3], session="mine").payload == "long"


def test_of_equal_lengths_the_own_session_wins_and_then_the_newest(bench):
    bench.put([1, 2], "mine", session="mine")
    bench.put([1, 2], "older", session="a")
    bench.put([1, 2], "newer", session="b")
    assert bench.take([1, 2, 3], session="mine").payload == "mine"
    assert bench.take([1, 2, 3], session="mine").payload == "newer"
    assert bench.take([1, 2, 3], session="mine").payload == "older"


@pytest.mark.parametrize(
    "other",
    [
        Bucket("n", "sig"),
        Bucket("m", "gis"),
        Bucket("m", "sig", lora="l"),
        Bucket("m", "sig", "", "i"),
    ],
)
def test_nothing_is_shared_between_buckets(bench, other):
    bench.put([1, 2])
    assert bench.take([1, 2, 3], bucket=other) is None
    assert bench.take([1, 2, 3]) is not None


def test_an_entry_longer_than_the_request_is_left_alone(bench):
    bench.put([1, 2, 3, 4], can_trim=True)
    assert bench.take([1, 2, 3]) is None
    assert bench.take([1, 2, 9, 4, 5]) is None
    assert len(bench.store) == 1


def test_a_prompt_seen_whole_is_reused_but_for_its_last_token(bench):
    bench.put([1, 2, 3], "fixed", can_trim=False)
    assert bench.take([1, 2, 3]) is None
    bench.put([1, 2, 3], "trimmable", can_trim=True)
    taken = bench.take([1, 2, 3])
    assert (taken.payload, taken.matched, len(taken.entry.tokens)) == ("trimmable", 2, 3)


def test_an_exact_match_is_preferred_to_a_trim_unless_only_the_trim_is_the_own_session(bench):
    bench.put([1, 2, 3], "trim", session="a", can_trim=True)
    bench.put([1, 2], "exact", session="b")
    assert bench.take([1, 2, 3], session="c").payload == "exact"
    bench.put([1, 2], "exact", session="b")
    assert bench.take([1, 2, 3], session="a").payload == "trim"


def test_prefixes_below_the_minimum_are_neither_stored_nor_adopted():
    bench = Bench(min_prefix=3)
    assert bench.put([1, 2], seq_id=7) is RejectReason.PREFIX_TOO_SHORT
    assert bench.rejects.last.seq_id == 7
    assert bench.put([1, 2, 3], can_trim=True) is None
    assert bench.take([1, 2, 3]) is None  # two tokens would be left of it
    assert bench.take([1, 2, 3, 4]).matched == 3


@pytest.mark.parametrize(
    ("bench", "tokens", "nbytes", "reason"),
    [
        (Bench(enabled=False, min_prefix=5), [1], 9999, RejectReason.DISABLED),
        (Bench(BUDGET.changed(BudgetChange(capacity_bytes=0))), [1], 1, RejectReason.DISABLED),
        (Bench(BUDGET.changed(BudgetChange(max_entries=0))), [1], 1, RejectReason.DISABLED),
        (Bench(min_prefix=5), [1], 9999, RejectReason.PREFIX_TOO_SHORT),
        (Bench(), [1], 1001, RejectReason.OVERSIZED),
    ],
)
def test_refusals_are_checked_in_order_and_counted_once(bench, tokens, nbytes, reason):
    assert bench.put(tokens, nbytes=nbytes) is reason
    assert {r: n for r, n in bench.rejects.counts.items() if n} == {reason: 1}
    assert bench.rejects.insert_rejects == 1
    assert bench.store.counters.rejections_oversized == (reason is RejectReason.OVERSIZED)
    assert bench.store.counters.inserts == 0
    assert bench.events() == ["reject"]


def test_a_refused_insert_destroys_nothing(bench):
    bench.put([1, 2], "old", nbytes=600)
    assert bench.put([1, 2], "new", nbytes=1001) is RejectReason.OVERSIZED
    assert bench.take([1, 2, 3]).payload == "old"


def test_an_equal_key_is_replaced_and_not_counted_as_evicted(bench):
    bench.put([1, 2], "old", nbytes=600)
    bench.put([1, 2], "new", nbytes=700)
    assert bench.store.counters.replaced == 1
    assert bench.store.counters.evictions_lru == 0
    assert (len(bench.store), bench.store.bytes) == (1, 700)
    assert bench.take([1, 2, 3]).payload == "new"


def test_the_oldest_entries_make_room_for_bytes_and_for_entries():
    bench = Bench(BUDGET.changed(BudgetChange(max_entries=3)))
    for token in range(3):
        bench.put([token], nbytes=400 if token == 2 else 300)
    bench.put([3], nbytes=500)  # two have to go for the bytes
    assert [list(entry.tokens) for entry in bench.store.entries()] == [[2], [3]]
    bench.put([4], nbytes=0)
    bench.put([5], nbytes=0)  # one for the entries
    assert [list(entry.tokens) for entry in bench.store.entries()] == [[3], [4], [5]]
    assert bench.store.counters.evictions_lru == 3
    bench.store.check()


def test_idle_entries_expire_and_zero_means_never(bench):
    bench.put([1])
    bench.clock.now = 59.9
    assert bench.store.find(Query.of(BUCKET, "s", [1, 2], 1)) is not None
    bench.clock.now = 60.0
    assert bench.store.find(Query.of(BUCKET, "s", [1, 2], 1)) is None
    assert bench.take([1, 2]) is None
    assert bench.store.counters.evictions_ttl == 1

    forever = Bench(BUDGET.changed(BudgetChange(ttl_seconds=0)))
    forever.put([1])
    forever.clock.now = 1e9
    assert forever.take([1, 2]) is not None


def test_a_disabled_store_is_not_looked_up_in():
    bench = Bench(enabled=False)
    assert bench.take([1, 2]) is None
    assert bench.store.counters.lookups == 0


def test_a_failed_adoption_is_a_miss_with_its_reason(bench):
    bench.put([1, 2])
    taken = bench.take([1, 2, 3])
    bench.store.adoption_failed(taken, RejectReason.LAYOUT_CONSTRAINTS)
    counters = bench.store.counters
    assert (counters.hits, counters.misses, counters.consumed) == (0, 1, 1)
    assert bench.rejects.insert_rejects == 0
    assert bench.rejects.last.context_len == 2
    bench.store.check()


def test_flush_drops_all_or_one_session_by_key_or_hash(bench):
    bench.put([1], session="a", nbytes=1)
    bench.put([2], session="a", nbytes=2)
    bench.put([3], session="b", nbytes=4)
    report = bench.store.flush("a", dry_run=True)
    assert (report.entries, report.bytes, report.dry_run, len(bench.store)) == (2, 3, True, 3)
    assert bench.store.flush(session_hash("a")).bytes == 3
    assert bench.store.flush("unknown").entries == 0
    assert bench.store.flush().entries == 1
    assert bench.store.counters.evictions_flush == 3
    assert [e.session for e in bench.trace.tail(256) if e.event == "flush"] == [
        session_hash("a"),
        None,
        None,
    ]


def test_resize_evicts_down_to_the_new_budget_and_reports_it(bench):
    for token in range(4):
        bench.put([token], nbytes=200)
    change = BudgetChange(capacity_bytes=500)
    dry = bench.store.resize(change, dry_run=True)
    assert (dry.evicted_entries, dry.evicted_bytes) == (2, 400)
    assert (bench.store.budget, len(bench.store)) == (BUDGET, 4)
    report = bench.store.resize(change)
    assert report == dry
    assert bench.store.budget == replace(BUDGET, capacity_bytes=500)
    assert [entry.tokens[0] for entry in bench.store.entries()] == [2, 3]
    bench.store.check()


def test_resize_gives_up_what_can_never_fit_before_what_fits(bench):
    bench.put([1], nbytes=10)
    bench.put([2], nbytes=900)
    bench.store.resize(BudgetChange(capacity_bytes=100))
    assert [entry.tokens[0] for entry in bench.store.entries()] == [1]


def test_resize_to_zero_disables_and_empties_and_a_later_resize_enables_again(bench):
    bench.put([1])
    assert bench.store.resize(BudgetChange(max_entries=0)).evicted_entries == 1
    assert not bench.store.enabled
    assert bench.put([1]) is RejectReason.DISABLED
    bench.store.resize(BudgetChange(max_entries=2))
    assert bench.put([1]) is None


def test_resize_applies_a_shorter_time_to_live_at_once(bench):
    bench.put([1])
    bench.clock.now = 30.0
    bench.put([2])
    assert bench.store.resize(BudgetChange(ttl_seconds=20.0)).evicted_entries == 1
    assert bench.store.counters.evictions_resize == 1
    assert bench.store.counters.evictions_ttl == 0


def test_memory_pressure_takes_the_oldest_first(bench):
    bench.put([1], nbytes=5)
    bench.put([2], nbytes=6)
    assert [bench.store.evict_oldest() for _ in range(3)] == [5, 6, 0]
    assert bench.store.counters.evictions_lru == 2


def test_the_callers_tokens_may_change_afterwards(bench):
    tokens = array("i", [1, 2])
    bench.put(tokens)
    tokens.append(3)
    assert bench.take([1, 2, 9]).matched == 2
    bench.store.check()


def test_the_published_numbers_are_the_stores_and_the_rest_is_left(bench):
    bench.put([1, 2], nbytes=30)
    bench.put([5], nbytes=5000, seq_id=3)
    bench.take([1, 2, 3])
    bench.put([1, 2, 3], nbytes=40)
    stats = fill(CacheStats(prompt_tokens=77, apc_enabled=True), bench.cache)
    assert (stats.prompt_tokens, stats.apc_enabled, stats.enabled) == (77, True, True)
    assert (stats.entries, stats.bytes, stats.cache_bytes_total) == (1, 40, 40)
    assert (stats.inserts, stats.consumed, stats.hits, stats.hit_rate) == (2, 1, 1, 1.0)
    assert (stats.rejections_oversized, stats.reject_oversized, stats.insert_rejects) == (1, 1, 1)
    assert (stats.last_reject_reason, stats.last_reject_seq_id) == ("oversized", 3)


def test_the_published_numbers_are_complete_when_disabled():
    bench = Bench(enabled=False)
    stats = fill(CacheStats(), bench.cache)
    assert (stats.enabled, stats.capacity_bytes, stats.max_entries) == (False, 1000, 10)
    assert (stats.hit_rate, stats.last_reject_reason) == (0.0, None)


def test_a_lookup_does_not_walk_the_entries():
    """A thousand entries beside the prompt cost no more nodes than none."""
    bench = Bench(Budget(10**9, 10**6, 0, 0, 0, 0))
    prompt = list(range(2000))
    bench.put(prompt[:1000])
    seen: list[int] = []
    index = bench.store._indexes[BUCKET]
    for other in range(1000):
        bench.put([100_000 + other, *range(50)])
    walk = index.prefixes

    def counted(tokens):
        for item in walk(tokens):
            seen.append(item[0])
            yield item

    index.prefixes = counted  # type: ignore[method-assign]
    assert bench.store.find(Query.of(BUCKET, "s", prompt, 1999))[0] == 1000
    assert seen == [1000]
