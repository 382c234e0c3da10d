from __future__ import annotations

from typing import Any

import pytest

from mlxceld.models.budgets import (
    KV_CAPACITY,
    SNAPSHOT_CAPACITY,
    Capacities,
    MemoryTerms,
    derive_capacities,
)
from mlxceld.models.caches.kinds import CacheKind
from mlxceld.models.sizing import LeafSize, StateSize

GIB = 2**30
HYBRID = StateSize(
    (
        LeafSize(CacheKind.PAGEABLE, 12_288),
        LeafSize(CacheKind.RECURRENT, fixed_bytes=19_537_920),
    )
)
PAGEABLE = StateSize((LeafSize(CacheKind.PAGEABLE, 100_000),))


def derive(size: StateSize, memory: MemoryTerms, **changes: Any) -> Capacities:
    options: dict[str, Any] = {
        "context_length": 262_144,
        "kv": KV_CAPACITY,
        "snapshots": SNAPSHOT_CAPACITY,
        "used": ("kv",) if size.pageable else ("snapshots",),
    }
    return derive_capacities(size, memory=memory, **{**options, **changes})


def memory(device: int, weights: int = 2 * GIB, budget: int = 1000 * GIB) -> MemoryTerms:
    return MemoryTerms(device, weights, budget)


def test_snapshots_get_room_for_six_long_conversations() -> None:
    entry = 8192 * 12_288 + 19_537_920
    made = derive(HYBRID, memory(66 * GIB))
    assert made.snapshots.bytes == 6 * entry == 721_207_296
    assert "6 entries of 8,192 tokens" in made.snapshots.derivation
    assert made.kv.bytes == KV_CAPACITY
    assert made.kv.derivation == "default; this model does not use the store"


def test_a_short_context_or_a_small_state_leaves_the_default() -> None:
    made = derive(HYBRID, memory(66 * GIB), context_length=1024)
    assert made.snapshots.bytes == SNAPSHOT_CAPACITY == 536_870_912
    assert made.snapshots.derivation.startswith("default, not less than 183.8 MiB, the smaller of")


def test_a_quarter_of_what_is_left_bounds_it() -> None:
    wide = StateSize((LeafSize(CacheKind.RECURRENT, fixed_bytes=GIB),))
    assert derive(wide, memory(18 * GIB)).snapshots.bytes == 4 * GIB
    assert derive(wide, memory(42 * GIB)).snapshots.bytes == 6 * GIB


def test_prefixes_start_from_two_gibibytes() -> None:
    assert derive(PAGEABLE, memory(66 * GIB)).kv.bytes == 6 * 8192 * 100_000
    small = StateSize((LeafSize(CacheKind.PAGEABLE, 1000),))
    assert derive(small, memory(66 * GIB)).kv.bytes == KV_CAPACITY == 2_147_483_648


@pytest.mark.parametrize("store", ["kv", "snapshots"])
def test_what_the_operator_has_set_stays(store: str) -> None:
    made = derive(
        HYBRID, memory(3 * GIB), kv=5 * GIB, snapshots=7 * GIB, given=(store,), used=(store,)
    )
    chosen = made.kv if store == "kv" else made.snapshots
    assert (chosen.bytes, chosen.derivation) == (
        {"kv": 5 * GIB, "snapshots": 7 * GIB}[store],
        "set by the operator",
    )


def test_both_fit_the_budget_for_keys_and_values_and_half_of_what_is_left() -> None:
    both = ("kv", "snapshots")
    made = derive(HYBRID, memory(4 * GIB), used=both)
    assert made.kv.bytes + made.snapshots.bytes in range(GIB - 2, GIB + 1)
    assert made.kv.bytes in range(4 * made.snapshots.bytes, 4 * made.snapshots.bytes + 5)
    made = derive(HYBRID, memory(66 * GIB, budget=GIB), used=both)
    assert made.kv.bytes + made.snapshots.bytes in range(GIB - 2, GIB + 1)
    assert "cut to fit 1.0 GiB" in made.kv.derivation
    made = derive(HYBRID, memory(66 * GIB, budget=GIB), used=both, given=("kv",), kv=GIB // 2)
    assert (made.kv.bytes, made.snapshots.bytes) == (GIB // 2, GIB // 2)


def test_no_memory_is_no_room() -> None:
    made = derive(PAGEABLE, memory(GIB))
    assert made.kv.bytes == 0
