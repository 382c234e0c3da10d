"""How much the two stores may hold with the model that was loaded, where nobody has set it."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from mlxceld.engine.kv_budget import device_memory
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

_SETTINGS: dict[str, Store] = {
    "prompt_cache.capacity_bytes": "kv",
    "prompt_cache.snapshot_capacity_bytes": "snapshots",
}


def plan_capacities(
    model: LoadedModel,
    settings: Settings,
    given: Collection[str],
    kv_cache_budget: int,
) -> Capacities:
    """The capacities of both stores; logs the model's sizes and how the capacities came about.

    ``given`` names the settings that the operator has set. ``kv_cache_budget`` is the ceiling of
    keys and values in bytes.
    """
    cache = settings.prompt_cache
    size = measure(model.module)
    device, weights = device_memory(), model.status.weight_bytes
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
