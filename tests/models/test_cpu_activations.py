"""The gate by a power of 2 is mlx-lm's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models import activations

from mlxceld.models import cpu_activations


def test_it_is_mlx_lm_s_own() -> None:
    gate = mx.concatenate([mx.linspace(-200, 200, 4001), mx.array([0.0, -0.0, 1e-30, -88.0])])
    x = mx.random.normal(gate.shape, key=mx.random.key(1))
    want, got = activations.swiglu(gate, x), cpu_activations.swiglu(gate, x)
    assert mx.allclose(got, want, rtol=1e-5, atol=1e-6).item()
    assert not mx.any(mx.isnan(got)).item()


def test_other_types_are_left_to_mlx_lm() -> None:
    gate, x = mx.ones(4, mx.float16), mx.ones(4, mx.float16)
    assert cpu_activations.swiglu(gate, x).dtype == mx.float16
    assert mx.array_equal(cpu_activations.swiglu(gate, x), activations.swiglu(gate, x)).item()


def test_a_model_on_a_cpu_uses_it(tiny_model: Callable[..., Any]) -> None:
    module = tiny_model("llama").module
    cpu_activations.install(module)
    code = sys.modules[type(module).__module__]
    assert (code.swiglu is cpu_activations.swiglu) is (mx.default_device() == mx.cpu)
