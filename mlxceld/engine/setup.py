"""What the engine thread does once with a loaded model: make the core and its stores ready."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import mlx.core as mx

from mlxceld.config.units import readable_bytes
from mlxceld.engine.capacities import CapacityPlan, log_capacities, plan_capacities
from mlxceld.engine.core import EngineCore, Limits
from mlxceld.engine.kv_budget import KvBudget, device_memory, kv_budget
from mlxceld.engine.paged_reuse import PagedReuse
from mlxceld.engine.prefetch import Prefetcher
from mlxceld.engine.prefill import run_chunk
from mlxceld.engine.prefix_cache import PrefixMemory
from mlxceld.engine.reuse_plan import ReuseKind, ReusePlan, plan_reuse
from mlxceld.engine.row_allocator import growth_step
from mlxceld.engine.snapshot_reuse import SnapshotReuse
from mlxceld.engine.whole_reuse import WholePrefixReuse
from mlxceld.kv import paged_rows, row_caches, shared_attention, snapshots
from mlxceld.kv.pool import BlockPool
from mlxceld.kv.snapshots import RowState
from mlxceld.models.caches.registry import leaves
from mlxceld.prompt_cache.block_store import BlockStore
from mlxceld.prompt_cache.dense_store import DenseStore
from mlxceld.prompt_cache.snapshot_store import SnapshotStore

if TYPE_CHECKING:
    from mlxceld.config import Settings
    from mlxceld.engine.checks import Checks
    from mlxceld.engine.next_turns import MakeNextTurns
    from mlxceld.engine.power import PowerSource
    from mlxceld.engine.probe import BatchVerdict
    from mlxceld.engine.recorder import Recorder
    from mlxceld.engine.sequence import Sequence
    from mlxceld.engine.shared_probe import SharingVerdict
    from mlxceld.kv.row_caches import Caches
    from mlxceld.models.budgets import Capacities
    from mlxceld.models.loading import LoadedModel
    from mlxceld.prompt_cache.prompt_cache import PromptCache
    from mlxceld.telemetry.status import ModelStatus

log = logging.getLogger(__name__)

_SLAB_TOKENS = 1024
"""Tokens of a slab: small enough that one held by a single block is no great loss."""

_FIRST_SLAB = 4
"""What part of a slab the first one has, so that little is reserved while little is stored."""

_SLABS_AT_LEAST = 16
"""Slabs that a small budget is cut into, so that what is left over is small too."""


def plan_stores(
    model: LoadedModel, settings: Settings, given: Collection[str], cache: PromptCache
) -> tuple[ReusePlan, KvBudget, CapacityPlan, Capacities]:
    """How prompts are reused, the budget of keys and values, stored and running, and what of it
    stores may hold.

    ``cache`` begins with these capacities. ``given`` names the settings that the operator has set.
    Logs how all came about.
    """
    budget = kv_budget(settings.kv_cache_budget, model.status.weight_bytes, device_memory())
    log.info("kv cache budget: %s = %s", readable_bytes(budget.bytes), budget.derivation)
    reuse_plan = plan_reuse(model.status.layer_caches, settings, cache.budget.snapshots)
    plan = plan_capacities(model, reuse_plan.store, budget.bytes)
    capacities = plan.capacities(settings, given)
    log_capacities(plan, capacities, settings)
    cache.begin_with(
        replace(
            cache.budget,
            capacity_bytes=capacities.kv.bytes,
            snapshot_capacity_bytes=capacities.snapshots.bytes,
        )
    )
    return reuse_plan, budget, plan, capacities


def make_core(
    model: LoadedModel,
    settings: Settings,
    budget: KvBudget,
    reuse: PrefixMemory,
    recorder: Recorder,
    clock: Callable[[], float],
    checks: Checks,
    make_next_turns: MakeNextTurns,
) -> tuple[EngineCore, ModelStatus]:
    """See how a loaded model can be batched, and build its core.

    Logs the kinds of its caches and the verdict, one line each.
    """
    verdict = checks.batch()
    status = replace(
        with_verdicts(model.status, verdict, reuse.reading.sharing, checks.checked_at),
        context_length=_context_within(budget, reuse.token_bytes, model.status.context_length),
    )
    kinds = ", ".join(f"{count} {kind}" for kind, count in status.layer_caches.items())
    log.info("layer caches: %s", kinds or "none")
    level = logging.INFO if verdict.mode == "full" else logging.WARNING
    log.log(
        level,
        "batching: %s%s",
        verdict.mode,
        f" ({verdict.reason})" if verdict.reason else "",
    )
    _wire_memory()
    limits = Limits(settings.max_batch_size, settings.prefill_chunk, budget.bytes)
    core = EngineCore(model, verdict, limits, reuse, recorder, clock, make_next_turns)
    mx.clear_cache()
    mx.reset_peak_memory()
    return core, status


def with_verdicts(
    status: ModelStatus, batch: BatchVerdict, sharing: SharingVerdict | None, checked_at: float
) -> ModelStatus:
    """A model's status with what its checks found."""
    return replace(
        status,
        batching=batch.mode,
        batching_reason=batch.reason,
        sharing="" if sharing is None else sharing.mode,
        sharing_reason="" if sharing is None else sharing.reason,
        checked_at=checked_at,
    )


def make_reuse(
    model: LoadedModel,
    settings: Settings,
    plan: ReusePlan,
    budget: KvBudget,
    cache: PromptCache,
    checks: Checks,
) -> PrefixMemory:
    """What reuses this model's prompts as ``plan`` has it; its store is added to ``cache``."""
    shared_attention.install(model.module)
    # The shapes are the model's own, read off one token.
    row = row_caches.new_row(model.module)
    run_chunk(model.module, row, [[0]])
    log.info("prompt cache: %s (%s)", plan.kind.value, plan.reason)
    if plan.kind is ReuseKind.BLOCKS:
        return _paged_reuse(model, settings, budget, row, cache, checks)
    if plan.kind is ReuseKind.SNAPSHOTS:
        return _snapshot_reuse(model, settings, budget, row, cache)
    whole: DenseStore[Caches] = DenseStore(
        cache.budget,
        cache.clock,
        cache.on_event,
        cache.rejects,
        enabled=cache.switched_on,
        min_prefix=cache.min_prefix,
    )
    return WholePrefixReuse(
        cache.add(whole),
        model.status.id,
        token_bytes=row_caches.token_bytes(row),
        max_bytes=budget.bytes,
    )


def _paged_reuse(
    model: LoadedModel,
    settings: Settings,
    budget: KvBudget,
    row: Caches,
    cache: PromptCache,
    checks: Checks,
) -> PagedReuse:
    """Reuse for a model of which ``row`` holds one token, all of it pageable."""
    size = settings.apc.block_size
    shapes = paged_rows.layer_shapes(row)
    tokens = budget.bytes // sum(shape.token_bytes for shape in shapes)
    slab_tokens = max(size, min(_SLAB_TOKENS, tokens // _SLABS_AT_LEAST))
    pool = BlockPool(
        shapes,
        size,
        slab_tokens,
        max_bytes=budget.bytes,
        first_slab_tokens=slab_tokens // _FIRST_SLAB,
    )
    store = BlockStore(
        pool,
        cache.budget,
        cache.clock,
        cache.on_event,
        cache.rejects,
        enabled=cache.switched_on,
        min_prefix=cache.min_prefix,
        partial=settings.apc.enabled,
        algorithm=settings.apc.hash,
    )
    log.info("blocks of %d tokens, %d bytes", pool.block_size, pool.bytes_per_block)
    sharing = checks.sharing(pool.shapes, pool.block_size)
    log.info(
        "shared prefixes: %s%s", sharing.mode, f" ({sharing.reason})" if sharing.reason else ""
    )
    return PagedReuse(cache.add(store), pool, model.module, model.status.id, sharing)


def make_prefetcher(
    model: LoadedModel,
    settings: Settings,
    budget: KvBudget,
    reuse: PrefixMemory,
    in_flight: Callable[[], Iterable[Sequence]],
    power: PowerSource,
) -> Prefetcher:
    """What computes next turns ahead, as far as the settings let it."""
    mode = settings.prompt_cache.prefetch

    def allowed() -> bool:
        return mode == "on" or (mode == "auto" and not power.on_battery())

    return Prefetcher(
        model.module,
        reuse,
        chunk=settings.prefill_chunk,
        allowed=allowed,
        in_flight=in_flight,
        limit=budget.bytes,
        context_length=model.status.context_length,
    )


def _snapshot_reuse(
    model: LoadedModel, settings: Settings, budget: KvBudget, row: Caches, cache: PromptCache
) -> SnapshotReuse:
    """Reuse for a model of which ``row`` holds one token, and not all of it pageable."""
    size = settings.apc.block_size
    pageable = list(snapshots.pageable(row))
    pool = None
    if pageable:
        pool = BlockPool(
            paged_rows.layer_shapes(pageable),
            size,
            max(_SLAB_TOKENS, size),
            max_bytes=cache.budget.snapshot_capacity_bytes,
            first_slab_tokens=_SLAB_TOKENS // _FIRST_SLAB,
        )
    store: SnapshotStore[RowState] = SnapshotStore(
        pool,
        cache.budget,
        cache.clock,
        cache.on_event,
        cache.rejects,
        enabled=cache.switched_on,
        min_prefix=cache.min_prefix,
    )
    log.info(
        "%d caches of %d are kept by reference",
        len(pageable),
        sum(1 for _ in leaves(row)),
    )
    return SnapshotReuse(
        cache.add(store),
        pool,
        model.module,
        model.status.id,
        token_bytes=row_caches.token_bytes(row),
        max_bytes=budget.bytes,
    )


def _context_within(budget: KvBudget, token_bytes: int, context: int) -> int:
    """The model's context length, cut to what one request alone can have of the budget."""
    if not token_bytes:
        return context
    most = max(1, budget.bytes // token_bytes - growth_step(budget.bytes, token_bytes))
    if most >= context:
        return context
    log.warning(
        "the kv cache budget holds %d tokens: the context is cut to that from %d", most, context
    )
    return most


def _wire_memory() -> None:
    """On Metal, keep the weights resident up to what the device recommends."""
    if mx.metal.is_available():
        recommended = mx.device_info().get("max_recommended_working_set_size")
        if isinstance(recommended, int):
            mx.set_wired_limit(recommended)
