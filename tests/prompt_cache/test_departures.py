"""What has left a store is known for a while, without its tokens."""

from __future__ import annotations

from array import array
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mlxceld.prompt_cache.dense_store import DenseStore
from mlxceld.prompt_cache.departures import KEPT, Departure, Departures
from mlxceld.prompt_cache.key import Bucket
from mlxceld.prompt_cache.radix import TYPE_CODE
from mlxceld.prompt_cache.rejects import RejectLog
from mlxceld.prompt_cache.reports import Budget, BudgetChange
from mlxceld.prompt_cache.trace import Trace

BUCKET = Bucket("m", "sig")
BUDGET = Budget(10_000, 100, 60.0, 5_000, 50, 7200.0)


class Gone:
    def __init__(self, tokens: list[int], bucket: Bucket = BUCKET) -> None:
        self.bucket, self.tokens = bucket, array(TYPE_CODE, tokens)


@given(
    common=st.integers(0, 300),
    rest=st.integers(0, 300),
    asked=st.integers(0, 300),
)
def test_a_common_beginning_is_known_to_a_quarter(common: int, rest: int, asked: int) -> None:
    departures = Departures()
    departures.note(Gone([7] * common + [1] * rest), "lru", 10.0)
    found = departures.nearest(BUCKET, [7] * common + [2] * asked, 12.0)
    if rest == 0 and common:
        assert found == Departure("lru", common, 2.0)
    elif common < 32:
        assert found is None
    else:
        assert found is not None
        assert common / 1.3 - 1 <= found.matched_tokens <= common


def test_the_longest_is_told_and_of_equals_the_newest() -> None:
    departures = Departures()
    departures.note(Gone([1] * 40), "lru", 1.0)
    departures.note(Gone([1] * 80), "ttl", 2.0)
    departures.note(Gone([1] * 80), "flush", 3.0)
    departures.note(Gone([1] * 50, replace(BUCKET, model="other")), "resize", 4.0)
    assert departures.nearest(BUCKET, [1] * 90, 5.0) == Departure("flush", 80, 2.0)
    assert departures.nearest(BUCKET, [2] * 90, 5.0) is None
    assert departures.nearest(BUCKET, [], 5.0) is None


def test_only_the_newest_are_kept() -> None:
    departures = Departures()
    departures.note(Gone([1] * 40), "lru", 1.0)
    for number in range(KEPT):
        departures.note(Gone([2, number] * 20), "lru", 2.0)
    assert departures.nearest(BUCKET, [1] * 40, 3.0) is None


def test_a_store_notes_each_way_of_leaving() -> None:
    now = [0.0]
    trace = Trace(lambda: 0)
    store: DenseStore[str] = DenseStore(
        BUDGET, lambda: now[0], trace.emit, RejectLog(lambda: 0), min_prefix=2
    )

    def put(token: int) -> None:
        store.insert(BUCKET, "s", [token] * 40, "kv", 100)

    def reason_of(token: int) -> str | None:
        found = store.departures.nearest(BUCKET, [token] * 41, now[0])
        return None if found is None else found.reason

    put(1)
    assert reason_of(1) is None
    now[0] = 61.0
    assert store.sweep() == 1
    put(2)
    store.flush()
    put(3)
    put(4)
    store.resize(BudgetChange(max_entries=1))
    put(5)
    assert [reason_of(token) for token in range(1, 6)] == ["ttl", "flush", "resize", "lru", None]
