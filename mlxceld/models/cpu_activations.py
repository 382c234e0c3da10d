"""A quicker gate for feed-forward layers where there is no GPU.

mlx-lm's ``swiglu(gate, x)`` is x gate / (1 + e^-gate). MLX's sigmoid on a CPU takes about 16 ns an
element on the machine this was measured on, a power of 2 takes 4; over a prompt's wide layers that
is a good part of its prefill.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import mlx.core as mx
from mlx_lm.models import activations

_NAME = "swiglu"
_theirs = activations.swiglu
_LOG2_E = 1.0 / math.log(2.0)


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """``silu(gate) * x``, element by element, in float32 by a power of 2."""
    if gate.dtype != mx.float32:
        result: mx.array = _theirs(gate, x)
        return result
    return gate * x / (1.0 + mx.power(2.0, gate * -_LOG2_E))


def install(module: Any) -> None:
    """Let a model use it; only where it is computed on a CPU."""
    if mx.default_device() != mx.cpu:
        return
    for name in {type(part).__module__ for part in module.modules()}:
        code = sys.modules.get(name)
        if code is not None and getattr(code, _NAME, None) is _theirs:
            setattr(code, _NAME, swiglu)
