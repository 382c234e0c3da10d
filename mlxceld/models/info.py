"""What a loaded model is, in plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import get_total_parameters

ASSUMED_CONTEXT = 8192
"""Tokens, for a model whose config names no limit."""

_CONTEXT_KEYS = (
    "max_position_embeddings",
    "max_seq_len",
    "max_sequence_length",
    "model_max_length",
    "seq_length",
    "n_positions",
    "n_ctx",
)


def context_length(config: Mapping[str, Any]) -> tuple[int, bool]:
    """The most tokens that the config allows, and whether it said so.

    The text part of a config that covers several kinds of input goes before the whole.
    """
    candidates = (config.get("text_config"), config.get("llm_config"), config)
    parts: list[Mapping[str, Any]] = [part for part in candidates if isinstance(part, Mapping)]
    for part in parts:
        for key in _CONTEXT_KEYS:
            value = part.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value, True
    return ASSUMED_CONTEXT, False


def on_cpu() -> bool:
    """Whether MLX computes on the CPU here."""
    return bool(mx.default_device() == mx.Device(mx.cpu))


def device_name() -> str:
    """The device that MLX computes on, as a person would name it."""
    if on_cpu():
        return "cpu"
    name = mx.device_info().get("device_name")
    return f"gpu ({name})" if name else "gpu"


def weight_bytes(module: Any) -> int:
    """Bytes of all parameters."""
    return sum(array.nbytes for _, array in tree_flatten(module.parameters()))


def parameter_count(module: Any) -> int:
    """How many numbers the model has, those packed into words counted one by one."""
    parameters = tree_flatten(module.parameters())
    if any(path.endswith(".scales") for path, _ in parameters):
        return int(get_total_parameters(module))
    return sum(array.size for _, array in parameters)


def dtype_name(module: Any, config: Mapping[str, Any]) -> str:
    """The type of most floating-point parameters, with the bits of a quantized model."""
    sizes: Counter[str] = Counter()
    packed = False
    for path, array in tree_flatten(module.parameters()):
        if mx.issubdtype(array.dtype, mx.floating):
            sizes[str(array.dtype).removeprefix("mlx.core.")] += array.nbytes
        packed = packed or path.endswith(".scales")
    main = sizes.most_common(1)[0][0] if sizes else "integer"
    quantization = config.get("quantization") or config.get("quantization_config")
    bits = quantization.get("bits") if isinstance(quantization, Mapping) else None
    return f"{bits or 'few'}-bit, {main}" if packed else main
