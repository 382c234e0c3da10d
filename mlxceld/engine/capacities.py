"""How much the two stores may hold with the model that was loaded, where nobody has set it."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxceld.engine.kv_budget import device_memory
from mlxceld.models.budgets import (
    KV_CAPACITY,
    SNAPSHOT_CAPACITY,
    Capacities,
    MemoryTerms,
    Sized,
    Store,
    derive_capacities,
)
from mlxceld.models.sizing import measure

if TYPE_CHECKING:
    from mlxceld.config import Settings
    from mlxceld.models.loading import LoadedModel

log = logging.getLogger(__name__)

CAPACITY_SETTINGS: dict[str, Store] = {
    "prompt_cache.capacity_bytes": "kv",
    "prompt_cache.snapshot_capacity_bytes": "snapshots",
}
"""The settings that a model's size derives where nobody has set them."""


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """What the capacities of a loaded model's stores follow from: plain values, for any thread.

    ``size`` is what the state of one sequence takes; ``used`` the store that this model uses.
    """

    size: Sized
    context_length: int
    memory: MemoryTerms
    used: Store

    def capacities(self, settings: Settings, given: Collection[str]) -> Capacities:
        """The capacities of both stores; ``given`` names the settings that the operator has set."""
        cache = settings.prompt_cache
        fixed = {store for name, store in CAPACITY_SETTINGS.items() if name in given}
        if cache.capacity_bytes != KV_CAPACITY:
            fixed.add("kv")
        if cache.snapshot_capacity_bytes != SNAPSHOT_CAPACITY:
            fixed.add("snapshots")
        return derive_capacities(
            self.size,
            self.context_length,
            self.memory,
            kv=cache.capacity_bytes,
            snapshots=cache.snapshot_capacity_bytes,
            given=fixed,
            used=(self.used,),
        )


def plan_capacities(model: LoadedModel, used: Store, kv_cache_budget: int) -> CapacityPlan:
    """Measure the model, which has use for one store.

    ``kv_cache_budget`` is the ceiling of keys and values in bytes.
    """
    size = measure(model.module)
    return CapacityPlan(
        size,
        model.status.context_length,
        MemoryTerms(device_memory(), model.status.weight_bytes, kv_cache_budget),
        used,
    )


def log_capacities(plan: CapacityPlan, capacities: Capacities, settings: Settings) -> None:
    """Log the model's sizes and how the capacities came about."""
    cache = settings.prompt_cache
    log.info("state of a sequence: %s", plan.size.describe())
    for name, capacity in (("kv", capacities.kv), ("snapshots", capacities.snapshots)):
        log.info("%s capacity: %d bytes (%s)", name, capacity.bytes, capacity.derivation)
    log.info(
        "snapshot limits: %d bytes, %d entries, %g s",
        capacities.snapshots.bytes,
        cache.snapshot_max_entries,
        cache.snapshot_ttl,
    )
