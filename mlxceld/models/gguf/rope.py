"""How a GGUF file says that rotary frequencies are scaled, as mlx-lm's config says it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mlxceld.models.errors import ModelError, shown
from mlxceld.models.gguf.blocks import read_float32
from mlxceld.models.gguf.reader import GgufFile, number

ROPE_FREQUENCIES = "rope_freqs.weight"

_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192
"""The parameters of every published llama3 scaling; files hold only what they result in."""


def rope_scaling(file: GgufFile, head_dim: int, base: float) -> dict[str, Any] | None:
    """The ``rope_scaling`` of a config, None for none. Raises ModelError for an unknown kind."""
    frequencies = file.tensors.get(ROPE_FREQUENCIES)
    if frequencies is not None:
        return _llama3(file, read_float32(file, frequencies), head_dim, base)
    kind = file.metadata.get("llama.rope.scaling.type", "none")
    old = number(file, "llama.rope.scale_linear", 1.0)
    factor = number(file, "llama.rope.scaling.factor", old)
    if factor <= 0:
        raise ModelError(f"{file.path}: rope scaling by {factor}, expected a positive number")
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return None
    if kind == "linear":
        return {"type": "linear", "factor": float(factor)}
    raise ModelError(f"{file.path}: rope scaling {shown(kind)} cannot be imported, only 'linear'")


def _llama3(file: GgufFile, factors: Any, head_dim: int, base: float) -> dict[str, Any]:
    """The scaling whose factors the file holds, made sure of by computing them again."""
    if factors.shape != (head_dim // 2,):
        raise ModelError(
            f"{file.path}: {ROPE_FREQUENCIES} has the shape {factors.shape},"
            f" expected {(head_dim // 2,)}"
        )
    factor = float(np.max(factors))
    if not (math.isfinite(factor) and factor > 0) or not np.allclose(
        factors, llama3_factors(factor, head_dim, base), rtol=1e-4
    ):
        raise ModelError(f"{file.path}: {ROPE_FREQUENCIES} are not those of a llama3 scaling")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LOW,
        "high_freq_factor": _HIGH,
        "original_max_position_embeddings": _ORIGINAL,
    }


def llama3_factors(factor: float, head_dim: int, base: float) -> Any:
    """By how much a llama3 scaling slows each of the head_dim / 2 rotary frequencies."""
    wavelengths = 2 * math.pi * base ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((_ORIGINAL / wavelengths - _LOW) / (_HIGH - _LOW), 0.0, 1.0)
    return 1 / ((1 - smooth) / factor + smooth)
