"""A quicker gate for feed-forward layers where there is no GPU.

mlx-lm's ``swiglu(gate, x)`` is x gate / (1 + e^-gate). MLX's sigmoid on a CPU takes about 16 ns an
element on the machine this was measured on, a power of 2 takes 4, NumPy's exp half a nanosecond;
over a prompt's wide layers that is a good part of its prefill.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models import activations

_NAME = "swiglu"
_theirs = activations.swiglu
_LOG2_E = 1.0 / math.log(2.0)

_MANY_ELEMENTS = 1 << 14
"""Elements from which on NumPy's exp pays for the evaluation that it needs."""


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """``silu(gate) * x``, element by element; in float32 without MLX's sigmoid."""
    if gate.dtype != mx.float32:
        result: mx.array = _theirs(gate, x)
        return result
    if gate.size < _MANY_ELEMENTS:
        return gate * x / (1.0 + mx.power(2.0, gate * -_LOG2_E))
    return gate * x / _one_and_exp(-gate)


def _one_and_exp(exponents: mx.array) -> mx.array:
    """1 + e^x in x's own memory, which belongs to the caller alone."""
    mx.eval(exponents)
    view = np.asarray(memoryview(exponents))  # type: ignore[arg-type]
    with np.errstate(over="ignore"):  # the quotient is 0 there
        np.exp(view, out=view)
    np.add(view, 1.0, out=view)
    return exponents


def install(module: Any) -> None:
    """Let a model use it; only where it is computed on a CPU."""
    if mx.default_device() != mx.cpu:
        return
    for name in {type(part).__module__ for part in module.modules()}:
        code = sys.modules.get(name)
        if code is not None and getattr(code, _NAME, None) is _theirs:
            setattr(code, _NAME, swiglu)
