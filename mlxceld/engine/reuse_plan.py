"""How a model's prompts are reused: decided here, once at load, and read by everybody else."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxceld.models.caches.kinds import CacheKind

if TYPE_CHECKING:
    from mlxceld.config import Settings
    from mlxceld.models.budgets import Store
    from mlxceld.prompt_cache.reports import Limits


class ReuseKind(enum.StrEnum):
    """A way of reuse, by the word that status and log have for it."""

    BLOCKS = "blocks"
    """Any beginning is adopted from the block pool, to the token."""

    SNAPSHOTS = "snapshots"
    """A prompt goes on from where the model's state was kept."""

    WHOLE = "whole prefixes"
    """An entry that all of a prompt begins with is taken out of the store."""

    NONE = "none"
    """Nothing is stored or adopted."""


@dataclass(frozen=True, slots=True)
class ReusePlan:
    """The way of reuse and why it is that one."""

    kind: ReuseKind
    reason: str

    @property
    def store(self) -> Store:
        """Whose limits hold for what is stored."""
        return "snapshots" if self.kind is ReuseKind.SNAPSHOTS else "kv"


def plan_reuse(layer_caches: Mapping[str, int], settings: Settings, snapshots: Limits) -> ReusePlan:
    """Decide for a model with these caches by kind; ``snapshots`` are the limits at the start."""
    pageable = set(layer_caches) == {CacheKind.PAGEABLE.value}
    if not settings.prompt_cache.enabled:
        return ReusePlan(ReuseKind.NONE, "prompt_cache.enabled is off")
    if settings.kv_backend == "dense":
        return ReusePlan(ReuseKind.WHOLE, "kv_backend is dense")
    if pageable:
        return ReusePlan(ReuseKind.BLOCKS, "all layers are pageable")
    if not (snapshots.capacity_bytes and snapshots.max_entries):
        return ReusePlan(ReuseKind.WHOLE, "not all layers are pageable, and snapshots are off")
    return ReusePlan(ReuseKind.SNAPSHOTS, "not all layers are pageable")
