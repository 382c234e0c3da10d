"""The store against a naive one, step by step through random histories."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mlxceld.prompt_cache.dense_store import DenseStore
from mlxceld.prompt_cache.key import Bucket
from mlxceld.prompt_cache.match import Query
from mlxceld.prompt_cache.rejects import RejectLog, RejectReason
from mlxceld.prompt_cache.reports import Budget, BudgetChange

MIN_PREFIX = 2
BUCKETS = st.sampled_from([Bucket("m", "a"), Bucket("m", "b")])
SESSIONS = st.sampled_from(["x", "y"])
# Few distinct tokens and short runs, so that prefixes meet, split and merge all the time.
TOKENS = st.lists(st.integers(0, 1), max_size=7)
SIZES = st.integers(0, 60)


@dataclass
class Stored:
    bucket: Bucket
    session: str
    tokens: list[int]
    payload: int
    nbytes: int
    used: int
    can_trim: bool


class StoreAgainstOracle(RuleBasedStateMachine):
    """Every list here is in order of age, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.budget = Budget(100, 4, 50, 0, 0, 0)
        self.stored: list[Stored] = []
        self.serial = 0
        self.store: DenseStore[int] = DenseStore(
            self.budget,
            lambda: self.now,
            lambda event, **details: None,
            RejectLog(lambda: self.now),
            min_prefix=MIN_PREFIX,
        )

    @property
    def enabled(self) -> bool:
        return self.budget.capacity_bytes > 0 and self.budget.max_entries > 0

    def expire(self) -> None:
        ttl = self.budget.ttl_seconds
        if ttl:
            self.stored = [s for s in self.stored if self.now - s.used < ttl]

    def shrink(self) -> None:
        while (
            len(self.stored) > self.budget.max_entries
            or sum(s.nbytes for s in self.stored) > self.budget.capacity_bytes
        ):
            del self.stored[0]

    @rule(by=st.integers(0, 30))
    def wait(self, by: int) -> None:
        self.now += by

    @rule(bucket=BUCKETS, session=SESSIONS, tokens=TOKENS, nbytes=SIZES, can_trim=st.booleans())
    def insert(self, bucket, session, tokens, nbytes, can_trim) -> None:
        self.serial += 1
        got = self.store.insert(bucket, session, tokens, self.serial, nbytes, can_trim=can_trim)
        if not self.enabled:
            assert got is RejectReason.DISABLED
        elif len(tokens) < MIN_PREFIX:
            assert got is RejectReason.PREFIX_TOO_SHORT
        elif nbytes > self.budget.capacity_bytes:
            assert got is RejectReason.OVERSIZED
        else:
            assert got is None
            self.expire()
            key = (bucket, session, tokens)
            self.stored = [s for s in self.stored if (s.bucket, s.session, s.tokens) != key]
            new = Stored(bucket, session, tokens, self.serial, nbytes, self.now, can_trim)
            self.stored.append(new)
            self.shrink()
            assert new in self.stored

    @rule(bucket=BUCKETS, session=SESSIONS, tokens=TOKENS, short=st.integers(0, 2))
    def take(self, bucket, session, tokens, short) -> None:
        limit = max(0, len(tokens) - short)
        got = self.store.take(self.store.match(Query.of(bucket, session, tokens, limit)))
        if not self.enabled:
            assert got is None
            return
        self.expire()
        best, best_rank = None, None
        for age, s in enumerate(self.stored):
            n = len(s.tokens)
            usable = n <= limit or (n == limit + 1 and s.can_trim)
            matched = min(n, limit)
            if s.bucket == bucket and usable and tokens[:n] == s.tokens and matched >= MIN_PREFIX:
                rank = (matched, s.session == session, n <= limit, age)
                if best_rank is None or rank > best_rank:
                    best, best_rank = s, rank
        if best is None:
            assert got is None
        else:
            assert got is not None
            assert (got.payload, got.matched) == (best.payload, best_rank[0])
            self.stored.remove(best)

    @rule(session=st.none() | SESSIONS, dry_run=st.booleans())
    def flush(self, session, dry_run) -> None:
        report = self.store.flush(session, dry_run=dry_run)
        gone = [s for s in self.stored if session in (None, s.session)]
        assert (report.entries, report.bytes) == (len(gone), sum(s.nbytes for s in gone))
        if not dry_run:
            self.stored = [s for s in self.stored if s not in gone]

    @rule(
        capacity=st.none() | st.integers(0, 120),
        entries=st.none() | st.integers(0, 5),
        ttl=st.none() | st.integers(0, 60),
        dry_run=st.booleans(),
    )
    def resize(self, capacity, entries, ttl, dry_run) -> None:
        change = BudgetChange(capacity, entries, ttl)
        report = self.store.resize(change, dry_run=dry_run)
        kept_budget, kept = self.budget, list(self.stored)
        self.expire()
        live = list(self.stored)
        self.budget = self.budget.changed(change)
        if not self.enabled:
            self.stored = []
        self.expire()
        self.stored = [s for s in self.stored if s.nbytes <= self.budget.capacity_bytes]
        self.shrink()
        gone = [s for s in live if s not in self.stored]
        assert report.evicted_entries == len(gone)
        assert report.evicted_bytes == sum(s.nbytes for s in gone)
        assert self.store.budget == (kept_budget if dry_run else self.budget)
        if dry_run:
            self.budget, self.stored = kept_budget, kept

    @rule()
    def sweep(self) -> None:
        before = len(self.stored)
        self.expire()
        assert self.store.sweep() == before - len(self.stored)

    @rule()
    def pressure(self) -> None:
        freed = self.store.evict_oldest()
        assert freed == (self.stored.pop(0).nbytes if self.stored else 0)

    @invariant()
    def the_books_balance(self) -> None:
        self.store.check()
        assert self.store.budget == self.budget
        assert [e.payload for e in self.store.entries()] == [s.payload for s in self.stored]


StoreAgainstOracle.TestCase.settings = settings(max_examples=80, stateful_step_count=30)
TestStoreAgainstOracle = StoreAgainstOracle.TestCase
