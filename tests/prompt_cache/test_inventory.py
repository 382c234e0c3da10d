"""What is stored, as it is listed."""

from __future__ import annotations

from mlxceld.kv.blocks import BlockAllocator
from mlxceld.prompt_cache.block_store import BlockStore
from mlxceld.prompt_cache.inventory import list_entries
from mlxceld.prompt_cache.key import Bucket, session_hash
from mlxceld.prompt_cache.rejects import RejectLog
from mlxceld.prompt_cache.reports import Budget
from mlxceld.prompt_cache.store import PrefixStore

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
    store.adopt(BUCKET, "alice", list(range(8)), 8)
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
    store: PrefixStore[str] = PrefixStore(
        BUDGET, lambda: 0.0, lambda *a, **k: None, RejectLog(lambda: 0)
    )
    store.insert(BUCKET, "s", [1, 2, 3], "kv", 70)
    (entry,) = list_entries([store]).entries
    assert (entry.blocks, entry.blocks_shared, entry.blocks_own) == (None, None, None)
    assert (entry.state_bytes, entry.bytes, entry.hits, entry.pins) == (70, 70, 0, 0)


def test_the_newest_uses_come_first_over_all_stores_and_the_rest_is_counted():
    clock = Clock()
    stores = [
        PrefixStore(BUDGET, clock, lambda *a, **k: None, RejectLog(lambda: 0)) for _ in range(2)
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
