"""What happens in a store is counted once and told once."""

from __future__ import annotations

from typing import Any

import pytest

from mlxceld.prompt_cache.journal import Journal
from mlxceld.prompt_cache.key import Bucket
from mlxceld.prompt_cache.radix import as_tokens
from mlxceld.prompt_cache.rejects import RejectLog, RejectReason
from mlxceld.prompt_cache.whole_entry import Entry


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.rejects = RejectLog(lambda: 0)
        self.journal = Journal("kv", "prefix", self.take, self.rejects)
        self.counters = self.journal.counters
        self.entry: Entry[None] = Entry(
            Bucket("m", "sig"), "s", as_tokens([1, 2, 3]), None, 1, 0.0, 0.0
        )

    def take(self, event: str, **values: Any) -> None:
        self.events.append((event, values))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]


@pytest.fixture
def told() -> Told:
    return Told()


def test_an_adoption_that_fails_is_a_miss_and_a_reject(told: Told):
    told.journal.adopted(told.entry, session="other", seq_id=1, matched=2, context_len=5, nbytes=10)
    assert (told.counters.hits, told.entry.hits) == (1, 1)
    assert told.rejects.outcomes.entry_of(1) == "prefix"
    told.journal.adoption_failed(told.entry, RejectReason.EMPTY_SET, seq_id=1, matched=2)
    assert (told.counters.hits, told.counters.misses, told.entry.hits) == (0, 1, 0)
    assert told.rejects.outcomes.entry_of(1) is None
    assert told.names == ["adopt", "reject"]
    (_, adopted), (_, rejected) = told.events
    assert (adopted["session"], adopted["context_len"]) == ("other", 5)
    assert (rejected["session"], rejected["matched_len"], rejected["reason"]) == (
        "s",
        2,
        "empty_set",
    )


def test_a_request_is_refused_once_a_direction(told: Told):
    for donation in (True, True, False):
        told.journal.rejected(
            RejectReason.OVERSIZED, session="s", seq_id=1, context_len=9, donation=donation
        )
    assert told.names == ["reject", "reject"]
    assert [values["matched_len"] for _, values in told.events] == [None, 9]
    assert told.counters.rejections_oversized == 2


def test_what_leaves_is_counted_by_its_reason(told: Told):
    journal, counters = told.journal, told.counters
    for _ in range(4):
        journal.stored(told.entry, seq_id=None, nbytes=1)
    journal.evicted(told.entry, "lru", freed=1)
    journal.evicted(told.entry, "ttl", freed=1)
    journal.superseded(told.entry, session="s", seq_id=2, context_len=4, freed=1)
    journal.flushed(1, session=None, freed=1)
    journal.resized(0, freed=0)
    assert (counters.evictions_lru, counters.evictions_ttl, counters.evictions_flush) == (1, 1, 1)
    assert counters.inserts == counters.left == 4
    assert told.names[4:] == ["evict", "evict", "supersede", "flush", "resize"]
    assert {values["store"] for _, values in told.events} == {"kv"}


def test_a_state_that_is_handed_over_is_a_lookup_and_a_hit(told: Told):
    told.journal.handed_over(session="s", seq_id=3, matched=2, context_len=4, nbytes=8)
    assert (told.counters.lookups, told.counters.hits) == (1, 1)
    assert told.names == ["adopt"]
    assert told.rejects.outcomes.entry_of(3) is None
