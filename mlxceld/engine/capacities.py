"""How much the two stores may hold with the model that was loaded, where nobody has set it."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from typing import TYPE_CHECKING

import mlx.core as mx

from mlxceld.models.budgets import (
    KV_CAPACITY,
    SNAPSHOT_CAPACITY,
    Capacities,
    MemoryTerms,
    Store,
    derive_capacities,
)
from mlxceld.models.sizing import measure

if TYPE_CHECKING:
    from mlxceld.config import Settings
    from mlxceld.models.loading import LoadedModel

log = logging.getLogger(__name__)

_KV_SHARE = 0.8
"""How much of what the model leaves keys and values may take."""

_SETTINGS: dict[str, Store] = {
    "prompt_cache.capacity_bytes": "kv",
    "prompt_cache.snapshot_capacity_bytes": "snapshots",
}


def plan_capacities(
    model: LoadedModel,
    settings: Settings,
    given: Collection[str],
    kv_cache_budget: int | None = None,
) -> Capacities:
    """The capacities of both stores; logs the model's sizes and how the capacities came about.

    ``given`` names the settings that the operator has set. ``kv_cache_budget`` is the ceiling of
    keys and values in bytes; None is a fixed share of what the model leaves.
    """
    cache = settings.prompt_cache
    size = measure(model.module)
    device, weights = device_memory(), model.status.weight_bytes
    if kv_cache_budget is None:
        kv_cache_budget = settings.kv_cache_budget
    if kv_cache_budget is None:
        kv_cache_budget = int(max(0, device - weights) * _KV_SHARE)
    fixed = {store for name, store in _SETTINGS.items() if name in given}
    if cache.capacity_bytes != KV_CAPACITY:
        fixed.add("kv")
    if cache.snapshot_capacity_bytes != SNAPSHOT_CAPACITY:
        fixed.add("snapshots")
    whole = size.pageable or settings.kv_backend == "dense"
    used: Store = "kv" if whole else "snapshots"
    capacities = derive_capacities(
        size,
        model.status.context_length,
        MemoryTerms(device, weights, kv_cache_budget),
        kv=cache.capacity_bytes,
        snapshots=cache.snapshot_capacity_bytes,
        given=fixed,
        used=(used,),
    )
    log.info("state of a sequence: %s", size.describe())
    for name, capacity in (("kv", capacities.kv), ("snapshots", capacities.snapshots)):
        log.info("%s capacity: %d bytes (%s)", name, capacity.bytes, capacity.derivation)
    log.info(
        "snapshot limits: %d bytes, %d entries, %g s",
        capacities.snapshots.bytes,
        cache.snapshot_max_entries,
        cache.snapshot_ttl,
    )
    return capacities


def device_memory() -> int:
    """Bytes that arrays may take here: what the GPU recommends, else the machine's memory."""
    limit = mx.get_memory_limit()
    if mx.metal.is_available():
        recommended = mx.device_info().get("max_recommended_working_set_size")
        return recommended if isinstance(recommended, int) else limit
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(physical, limit) if limit > 0 else physical
