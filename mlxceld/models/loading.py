"""A model folder into a model that can compute, on the thread that will own it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm import utils as mlx_lm_utils
from mlx_lm.models.cache import make_prompt_cache

from mlxceld.config.units import readable_bytes
from mlxceld.models import batch_masks, cpu_activations, cpu_rope
from mlxceld.models.caches.registry import classify, count_kinds
from mlxceld.models.end_tokens import named_end_ids
from mlxceld.models.errors import ModelError, one_line
from mlxceld.models.finite import check_finite
from mlxceld.models.folder import ModelFolder, check_folder
from mlxceld.models.info import (
    context_length,
    device_name,
    dtype_name,
    on_cpu,
    parameter_count,
    weight_bytes,
)
from mlxceld.models.progress import Progress
from mlxceld.models.text import TextCodec
from mlxceld.telemetry.status import ModelStatus

_PARTS = 8
"""In how many parts the weights are read, each reported."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to compute.

    ``module`` is mlx-lm's model, owned by the thread that loaded it. ``status`` says nothing of
    batching yet: that takes a probe.
    """

    module: Any
    text: TextCodec
    status: ModelStatus


def load_model(
    folder: ModelFolder, *, progress: Progress, special_tokens_in_text: bool = False
) -> LoadedModel:
    """Load weights and tokenizer; ``progress`` is told a line of text at each stage.

    ``special_tokens_in_text`` is the setting, see :class:`TextCodec`.
    On a CPU the weights become float32, the only type that its matrix library computes fast. On
    a GPU they stay as they are. Raises ModelError with one readable line.
    """
    check_folder(folder.path)
    # Imported after mlx-lm, which quiets what it says of itself at import. The rest of its advice
    # is for those who convert models; here a load says all in its own lines.
    import transformers

    transformers.logging.set_verbosity_error()
    try:
        return _load(folder, progress, special_tokens_in_text)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"model {folder.path}: {_explain(error)}") from error


def _load(folder: ModelFolder, progress: Progress, special_tokens_in_text: bool) -> LoadedModel:
    progress(f"loading {folder.id} from {folder.path}")
    module, config = mlx_lm_utils.load_model(folder.path, lazy=True)
    if on_cpu():
        module = _as_float32(module, progress)
    module.eval()
    cpu_activations.install(module)
    cpu_rope.install(module)
    batch_masks.install(module)
    _read_weights(module, progress)
    progress("loading tokenizer")
    tokenizer = mlx_lm_utils.load_tokenizer(
        folder.path,
        # A tokenizer that is code would be asked about on the terminal.
        {"trust_remote_code": False},
        eos_token_ids=sorted(named_end_ids(folder.path, config)),
    )
    width = _logits_width(module, progress)
    status = _describe(folder, module, config, width, progress)
    progress(
        f"loaded {status.id}: {status.parameters / 1e6:.1f} million parameters, {status.dtype},"
        f" {readable_bytes(status.weight_bytes)} of weights on {status.device}"
        f" ({readable_bytes(mx.get_active_memory())} in use)"
    )
    codec = TextCodec(tokenizer, width, special_tokens_in_text=special_tokens_in_text)
    return LoadedModel(module, codec, replace(status, template_steps=dict(codec.template_steps)))


def _as_float32(module: Any, progress: Progress) -> Any:
    """The model with float32 weights, still to be computed."""
    parameters = tree_flatten(module.parameters())
    if any(path.endswith(".scales") for path, _ in parameters):
        progress("no GPU: quantized weights are unpacked to float32")
    elif any(
        mx.issubdtype(array.dtype, mx.floating) and array.dtype != mx.float32
        for _, array in parameters
    ):
        progress("no GPU: weights are held in float32")
    # Before unpacking too: what scales of 16 bits unpack to would be rounded to 16 bits.
    module.set_dtype(mx.float32)
    module = mlx_lm_utils.dequantize_model(module)
    module.set_dtype(mx.float32)
    return module


def _read_weights(module: Any, progress: Progress) -> None:
    """Compute the lazy weights part by part, so that sources are let go of on the way."""
    arrays = [array for _, array in tree_flatten(module.parameters())]
    total = sum(array.nbytes for array in arrays)
    part: list[mx.array] = []
    done = number = 0
    for array in arrays:
        part.append(array)
        done += array.nbytes
        if done * _PARTS >= total * (number + 1):
            mx.eval(part)
            part = []
            number = done * _PARTS // total if total else _PARTS
            progress(f"loading weights {number}/{_PARTS} ({readable_bytes(done)})")
    mx.eval(part)
    mx.clear_cache()


def _logits_width(module: Any, progress: Progress) -> int:
    """How many tokens the model scores, from one step: configs and weights may differ in it.

    Raises ArithmeticError if what it gives is not made of numbers.
    """
    logits = module(mx.array([[0]]), cache=make_prompt_cache(module))
    mx.eval(logits)
    check_finite(module, logits, progress)
    return int(logits.shape[-1])


def _describe(
    folder: ModelFolder, module: Any, config: Mapping[str, Any], width: int, progress: Progress
) -> ModelStatus:
    context, stated = context_length(config)
    if not stated:
        progress(f"the config names no context length; {context} tokens are assumed")
    return ModelStatus(
        id=folder.id,
        path=str(folder.path),
        family=str(config["model_type"]),
        device=device_name(),
        dtype=dtype_name(module, config),
        context_length=context,
        vocab_size=width,
        parameters=parameter_count(module),
        weight_bytes=weight_bytes(module),
        layer_caches=count_kinds(classify(make_prompt_cache(module))),
        batching="",
        batching_reason="",
        loaded_at=time.time(),
    )


def _explain(error: Exception) -> str:
    text = one_line(error)
    if isinstance(error, ValueError) and "not supported" in text:
        return f"{text.rstrip('.')} by the installed mlx-lm"
    if isinstance(error, TypeError | KeyError):
        # These come from a config that lacks a field, and say little without their kind.
        return f"cannot be built from its config.json: {type(error).__name__}: {text}"
    return text
