"""What the engine thread does once with a loaded model: make the core and its stores ready."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import mlx.core as mx

from mlxceld.engine.core import EngineCore, Limits
from mlxceld.engine.paged_reuse import PagedReuse
from mlxceld.engine.prefetch import Prefetcher
from mlxceld.engine.prefill import run_chunk
from mlxceld.engine.probe import probe
from mlxceld.engine.reuse import PromptReuse, WholePrefixReuse
from mlxceld.engine.snapshot_reuse import SnapshotReuse
from mlxceld.kv import paged_rows, row_caches, snapshots
from mlxceld.kv.pool import BlockPool
from mlxceld.kv.snapshots import RowState
from mlxceld.models.cache_kinds import CacheKind
from mlxceld.prompt_cache.block_store import BlockStore
from mlxceld.prompt_cache.snapshot_store import SnapshotStore

if TYPE_CHECKING:
    from mlxceld.config import Settings
    from mlxceld.engine.power import PowerSource
    from mlxceld.engine.recorder import Recorder
    from mlxceld.engine.sequence import Sequence
    from mlxceld.kv.row_caches import Caches
    from mlxceld.models.loading import LoadedModel
    from mlxceld.prompt_cache.store import PrefixStore
    from mlxceld.prompt_cache.trace import EventSink
    from mlxceld.telemetry.status import ModelStatus

log = logging.getLogger(__name__)

_SLAB_TOKENS = 1024
"""Tokens of a slab: small enough that one held by a single block is no great loss."""


def make_core(
    model: LoadedModel,
    settings: Settings,
    reuse: PromptReuse,
    recorder: Recorder,
    clock: Callable[[], float],
) -> tuple[EngineCore, ModelStatus]:
    """Probe how a loaded model can be batched, and build its core.

    Logs the kinds of its caches and the verdict, one line each.
    """
    verdict = probe(model.module, model.status.vocab_size)
    status = replace(model.status, batching=verdict.mode, batching_reason=verdict.reason)
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
    limits = Limits(settings.max_batch_size, settings.prefill_chunk)
    core = EngineCore(model, verdict, limits, reuse, recorder, clock)
    mx.clear_cache()
    mx.reset_peak_memory()
    return core, status


def make_reuse(
    model: LoadedModel,
    settings: Settings,
    whole: PrefixStore[Caches],
    emit: EventSink,
    clock: Callable[[], float],
) -> PromptReuse:
    """How this model's prompts are reused: through the block pool where all caches are pageable,
    else through snapshots.

    ``whole`` is the store of whole prefixes, and gives the budget and the reject log.
    """
    kinds = set(model.status.layer_caches)
    pageable = kinds == {CacheKind.PAGEABLE.value}
    budget = whole.budget
    snapshots_off = not (budget.snapshot_capacity_bytes and budget.snapshot_max_entries)
    if (
        settings.kv_backend == "dense"
        or not settings.prompt_cache.enabled
        or (not pageable and snapshots_off)
    ):
        log.info("prompt cache: whole prefixes")
        return WholePrefixReuse(whole, model.status.id)
    # The shapes are the model's own, read off one token.
    row = row_caches.new_row(model.module)
    run_chunk(model.module, row, [[0]])
    if not pageable:
        return _snapshot_reuse(model, settings, row, whole, emit, clock)
    pool = BlockPool(
        paged_rows.layer_shapes(row),
        settings.apc.block_size,
        max(_SLAB_TOKENS, settings.apc.block_size),
        max_bytes=budget.capacity_bytes,
    )
    store = BlockStore(
        pool,
        budget,
        clock,
        emit,
        whole.rejects,
        min_prefix=whole.min_prefix,
        partial=settings.apc.enabled,
        algorithm=settings.apc.hash,
    )
    log.info("prompt cache: blocks of %d tokens, %d bytes", pool.block_size, pool.bytes_per_block)
    return PagedReuse(store, pool, model.module, model.status.id)


def _snapshot_reuse(
    model: LoadedModel,
    settings: Settings,
    row: Caches,
    whole: PrefixStore[Caches],
    emit: EventSink,
    clock: Callable[[], float],
) -> SnapshotReuse:
    """Reuse for a model of which ``row`` holds one token, and not all of it pageable."""
    budget, size = whole.budget, settings.apc.block_size
    pageable = list(snapshots.pageable(row))
    pool = None
    if pageable:
        pool = BlockPool(
            paged_rows.layer_shapes(pageable),
            size,
            max(_SLAB_TOKENS, size),
            max_bytes=budget.snapshot_capacity_bytes,
        )
    kept: SnapshotStore[RowState] = SnapshotStore(
        pool, budget, clock, emit, whole.rejects, min_prefix=whole.min_prefix
    )
    log.info(
        "prompt cache: snapshots, %d caches of %d by reference",
        len(pageable),
        sum(1 for _ in snapshots.leaves(row)),
    )
    return SnapshotReuse(whole, kept, pool, model.module, model.status.id)


def make_prefetcher(
    model: LoadedModel,
    settings: Settings,
    reuse: PromptReuse,
    in_flight: Callable[[], Iterable[Sequence]],
    power: PowerSource,
) -> Prefetcher:
    """What computes next turns ahead, as far as the settings let it."""
    mode = settings.prompt_cache.prefetch

    def allowed() -> bool:
        return mode == "on" or (mode == "auto" and not power.on_battery())

    return Prefetcher(
        model.module, reuse, chunk=settings.prefill_chunk, allowed=allowed, in_flight=in_flight
    )


def _wire_memory() -> None:
    """On Metal, keep the weights resident up to what the device recommends."""
    if mx.metal.is_available():
        recommended = mx.device_info().get("max_recommended_working_set_size")
        if isinstance(recommended, int):
            mx.set_wired_limit(recommended)
