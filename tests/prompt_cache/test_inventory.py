"""What is stored, as it is listed."""

from __future__ import annotations

import pytest

from mlxceld.kv.blocks import BlockAllocator
from mlxceld.prompt_cache.block_store import BlockStore
from mlxceld.prompt_cache.dense_store import DenseStore
from mlxceld.prompt_cache.inventory import list_entries
from mlxceld.prompt_cache.key import Bucket, session_hash
from mlxceld.prompt_cache.match import Query
from mlxceld.prompt_cache.radix import as_tokens
from mlxceld.prompt_cache.rejects import RejectLog, RejectReason
from mlxceld.prompt_cache.reports import Budget, BudgetChange, PinError
from mlxceld.prompt_cache.snapshot_entry import Origin
from mlxceld.prompt_cache.snapshot_store import SnapshotStore

BUCKET = Bucket("m", "sig")
BUDGET = Budget(1000, 10, 0, 0, 0, 0)


class Pool:
    """Four tokens a block, ten bytes each; the references are the real allocator's."""

    block_size = 4
    bytes_per_block = 10

    def __init__(self) -> None:
        self.allocator = BlockAllocator(16, 16)
        self.allocator.add_slab()
        self.retain, self.release = self.allocator.retain, self.allocator.release
        self.refcount = self.allocator.refcount

    def seal(self, start: int, stop: int) -> list[int] | None:
        return self.allocator.allocate(-(-(stop - start) // 4))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_blocks_are_told_apart_as_shared_and_own_and_the_session_is_hashed():
    pool, clock = Pool(), Clock()
    store = BlockStore(pool, BUDGET, clock, lambda *a, **k: None, RejectLog(lambda: 0))
    store.insert(BUCKET, "alice", range(8), pool.seal, client="laptop")
    clock.now = 5.0
    store.insert(BUCKET, "bob", [*range(8), 99], pool.seal)
    store.adopt(store.match(Query.of(BUCKET, "alice", list(range(8)), 8)))
    found = list_entries([store])
    assert found.total == 2
    by_session = {entry.session: entry for entry in found.entries}
    alice, bob = by_session[session_hash("alice")], by_session[session_hash("bob")]
    assert (alice.blocks, alice.blocks_shared, alice.blocks_own, alice.bytes) == (2, 2, 0, 20)
    assert (bob.blocks, bob.blocks_shared, bob.blocks_own, bob.bytes) == (3, 2, 1, 30)
    assert (alice.store, alice.tokens, alice.client, alice.state_bytes) == ("kv", 8, "laptop", None)
    assert (alice.age_seconds, bob.age_seconds) == (5.0, 0.0)
    assert alice.digest != bob.digest
    assert "alice" not in repr(found)


def test_a_whole_prefix_has_the_size_of_its_state():
    store: DenseStore[str] = DenseStore(
        BUDGET, lambda: 0.0, lambda *a, **k: None, RejectLog(lambda: 0)
    )
    store.insert(BUCKET, "s", [1, 2, 3], "kv", 70)
    (entry,) = list_entries([store]).entries
    assert (entry.blocks, entry.blocks_shared, entry.blocks_own) == (None, None, None)
    assert (entry.state_bytes, entry.bytes, entry.hits, entry.pins) == (70, 70, 0, 0)


def test_the_newest_uses_come_first_over_all_stores_and_the_rest_is_counted():
    clock = Clock()
    stores = [
        DenseStore(BUDGET, clock, lambda *a, **k: None, RejectLog(lambda: 0)) for _ in range(2)
    ]
    for at in range(4):
        clock.now = float(at)
        stores[at % 2].insert(BUCKET, f"s{at % 3}", [at, 1], "kv", 10 + at)
    found = list_entries(stores, limit=3)
    assert [entry.bytes for entry in found.entries] == [13, 12, 11]
    assert found.total == 4
    for wanted in ("s0", session_hash("s0")):
        assert [e.bytes for e in list_entries(stores, session=wanted).entries] == [13, 10]
    assert list_entries(stores, session="nobody").total == 0


def paged(pool: Pool, clock: Clock, budget: Budget = BUDGET) -> BlockStore:
    return BlockStore(pool, budget, clock, lambda *a, **k: None, RejectLog(lambda: 0))


def test_what_others_hold_of_an_entry_is_told_as_deferred():
    pool = Pool()
    store = paged(pool, Clock())
    store.insert(BUCKET, "a", range(8), pool.seal)
    store.insert(BUCKET, "b", [*range(4), 9, 9, 9, 9], pool.seal)
    match = store.adopt(store.match(Query.of(BUCKET, "a", list(range(8)), 8)))
    assert match is not None
    # The first block is also b's, so it does not leave the store with a.
    dry = store.flush("a", dry_run=True)
    assert (dry.entries, dry.bytes, dry.deferred_bytes) == (1, 10, 10)
    resized = store.resize(BudgetChange(capacity_bytes=0))
    assert (resized.evicted_bytes, resized.deferred_bytes) == (30, 20)
    assert pool.allocator.live == 2
    pool.release(match.blocks)
    assert pool.allocator.live == 0


def test_a_pinned_entry_outlives_age_and_use_but_not_the_budget_and_a_flush():
    pool, clock = Pool(), Clock()
    store = paged(pool, clock, Budget(40, 10, 50, 0, 0, 0))
    store.insert(BUCKET, "a", range(8), pool.seal)
    report = store.pin(BUCKET, "a", as_tokens(list(range(8))))
    assert (report.tokens, report.bytes, report.pins) == (8, 20, 1)
    clock.now = 1000.0
    assert store.sweep() == 0
    store.insert(BUCKET, "a", range(8), pool.seal)  # an equal one takes its place, and its pin
    for first in (50, 60):
        store.insert(BUCKET, "b", range(first, first + 8), pool.seal)
    assert {entry.tokens[0] for entry in store.entries()} == {0, 60}
    # Twelve tokens would fit into the budget, and not beside what is pinned.
    refusal = store.insert(BUCKET, "c", range(70, 82), pool.seal)
    assert refusal is RejectReason.OVERSIZED
    assert store.insert(BUCKET, "c", range(12), pool.seal) is None
    store.check()
    assert store.resize(BudgetChange(capacity_bytes=20)).evicted_entries == 1
    (kept,) = store.entries()
    assert kept.pins == 1
    assert store.resize(BudgetChange(capacity_bytes=10)).evicted_entries == 1
    store.insert(BUCKET, "a", [1], pool.seal)
    store.pin(BUCKET, "a", as_tokens([1]))
    assert store.flush().entries == 1


def test_a_pin_is_taken_off_by_its_digest_once():
    pool, clock = Pool(), Clock()
    store = paged(pool, clock, Budget(100, 10, 50, 0, 0, 0))
    store.insert(BUCKET, "a", range(8), pool.seal)
    digest = store.pin(BUCKET, "a", as_tokens(list(range(8)))).digest
    assert list_entries([store]).entries[0].digest == digest
    assert store.unpin("0" * 16) is None
    report = store.unpin(digest)
    assert report is not None
    assert report.pins == 0
    assert store.unpin(digest) is None
    clock.now = 60.0
    assert store.sweep() == 1


def test_what_is_not_stored_or_used_up_by_its_adopter_cannot_be_pinned():
    pool = Pool()
    with pytest.raises(PinError, match="could not be stored"):
        paged(pool, Clock()).pin(BUCKET, "a", as_tokens([1, 2]))
    whole: DenseStore[str] = DenseStore(
        BUDGET, lambda: 0.0, lambda *a, **k: None, RejectLog(lambda: 0)
    )
    whole.insert(BUCKET, "s", [1, 2, 3], "kv", 70)
    with pytest.raises(PinError, match="used up"):
        whole.pin(BUCKET, "s", as_tokens([1, 2, 3]))


def test_a_snapshot_has_its_state_its_blocks_and_its_origin_and_can_be_pinned():
    pool, clock = Pool(), Clock()
    store: SnapshotStore[str] = SnapshotStore(
        pool, Budget(0, 0, 0, 100, 9, 50), clock, lambda *a, **k: None, RejectLog(lambda: 0)
    )
    tokens = list(range(8))
    store.insert(BUCKET, "a", tokens, Origin.BOUNDARY, "state", 5, pool.seal, client="laptop")
    store.insert(BUCKET, "a", [*tokens, 9], Origin.COMPLETION, "state", 5, pool.seal)
    told = {entry.origin: entry for entry in list_entries([store]).entries}
    boundary, completion = told["boundary"], told["completion"]
    assert (boundary.store, boundary.state_bytes, boundary.bytes) == ("snapshots", 5, 25)
    assert (boundary.blocks_shared, boundary.blocks_own) == (2, 0)
    assert (completion.blocks_shared, completion.blocks_own) == (2, 1)
    assert boundary.digest != completion.digest
    pin = store.pin(BUCKET, "a", as_tokens(tokens))
    assert (pin.digest, pin.pins) == (boundary.digest, 1)
    # What makes the boundary useless for its session leaves it, since it is kept on purpose.
    store.insert(BUCKET, "a", [*tokens, 9, 9], Origin.BOUNDARY, "state", 5, pool.seal)
    clock.now = 60.0
    assert store.sweep() == 2
    (kept,) = store.entries()
    assert kept.pins == 1
    assert store.insert(BUCKET, "b", range(50, 90), Origin.HEAD, "state", 5, pool.seal) is (
        RejectReason.OVERSIZED
    )
    store.check()
    assert store.unpin(pin.digest) is not None
    assert store.sweep() == 1
