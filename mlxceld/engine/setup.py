"""What the engine thread does once with a loaded model: make the core and its stores ready."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import mlx.core as mx

from mlxceld.engine.core import EngineCore, Limits
from mlxceld.engine.paged_reuse import PagedReuse
from mlxceld.engine.prefill import run_chunk
from mlxceld.engine.probe import probe
from mlxceld.engine.reuse import PromptReuse, WholePrefixReuse
from mlxceld.engine.shared_probe import probe_sharing
from mlxceld.kv import paged_rows, row_caches, shared_attention
from mlxceld.kv.pool import BlockPool
from mlxceld.models.cache_kinds import CacheKind
from mlxceld.prompt_cache.block_store import BlockStore

if TYPE_CHECKING:
    from mlxceld.config import Settings
    from mlxceld.engine.recorder import Recorder
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
    """How this model's prompts are reused: through the block pool where all caches are pageable.

    ``whole`` is the store of whole prefixes, and gives the budget and the reject log.
    """
    kinds = set(model.status.layer_caches)
    pageable = kinds == {CacheKind.PAGEABLE.value}
    if settings.kv_backend == "dense" or not pageable or not settings.prompt_cache.enabled:
        log.info("prompt cache: whole prefixes")
        return WholePrefixReuse(whole, model.status.id)
    # The shapes are the model's own, read off one token.
    row = row_caches.new_row(model.module)
    run_chunk(model.module, row, [[0]])
    budget = whole.budget
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
    shared_attention.install(model.module)
    sharing = probe_sharing(model.module, model.status.vocab_size, pool.shapes, pool.block_size)
    log.info(
        "shared prefixes: %s%s", sharing.mode, f" ({sharing.reason})" if sharing.reason else ""
    )
    return PagedReuse(store, pool, model.module, model.status.id, sharing)


def _wire_memory() -> None:
    """On Metal, keep the weights resident up to what the device recommends."""
    if mx.metal.is_available():
        recommended = mx.device_info().get("max_recommended_working_set_size")
        if isinstance(recommended, int):
            mx.set_wired_limit(recommended)
