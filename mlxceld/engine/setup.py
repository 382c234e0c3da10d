"""What the engine thread does once with MLX: make the core ready, and let go of MLX at the end."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import mlx.core as mx

from mlxceld.engine.core import EngineCore, Limits
from mlxceld.engine.probe import probe
from mlxceld.engine.reuse import PromptReuse

if TYPE_CHECKING:
    from mlxceld.config import Settings
    from mlxceld.engine.recorder import Recorder
    from mlxceld.kv.row_caches import Caches
    from mlxceld.models.loading import LoadedModel
    from mlxceld.prompt_cache.store import PrefixStore
    from mlxceld.telemetry.status import ModelStatus

log = logging.getLogger(__name__)


def make_core(
    model: LoadedModel,
    settings: Settings,
    store: PrefixStore[Caches],
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
    core = EngineCore(model, verdict, limits, PromptReuse(store, status.id), recorder, clock)
    mx.clear_cache()
    mx.reset_peak_memory()
    return core, status


def _wire_memory() -> None:
    """On Metal, keep the weights resident up to what the device recommends."""
    if mx.metal.is_available():
        recommended = mx.device_info().get("max_recommended_working_set_size")
        if isinstance(recommended, int):
            mx.set_wired_limit(recommended)


def release_mlx() -> None:
    """Give memory back and end this thread's streams; without the latter the exit aborts."""
    mx.synchronize()
    mx.clear_cache()
    mx.clear_streams()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
