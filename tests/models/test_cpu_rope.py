"""Rotary positions by kept angles are those of mx.fast.rope, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models.rope_utils import Llama3RoPE

from mlxceld.models import cpu_rope
from mlxceld.models.cpu_rope import CpuLlama3RoPE, CpuRoPE

pytestmark = pytest.mark.skipif(mx.default_device() != mx.cpu, reason="for a CPU alone")

SCALED = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
OFFSETS = {"none": 0, "one": 4097, "a row": mx.array([3, 700, -2])}


def _modules() -> dict[str, tuple[Any, Any]]:
    def twice(make: Callable[[], Any]) -> tuple[Any, Any]:
        mine, theirs = make(), make()
        cpu_rope.install(nn.Sequential(mine))
        return mine, theirs

    return {
        "plain": twice(lambda: nn.RoPE(64)),
        "scaled": twice(lambda: nn.RoPE(64, base=1e6, scale=0.25)),
        "partial": twice(lambda: nn.RoPE(32, base=5e5)),
        "llama3": twice(lambda: Llama3RoPE(64, base=5e5, scaling_config=SCALED)),
    }


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("count", [1, 5, 300])
@pytest.mark.parametrize("offset", OFFSETS.values(), ids=OFFSETS)
def test_it_is_mlx_s_own(offset: int | mx.array, count: int, dtype: mx.Dtype) -> None:
    x = mx.random.normal((3, 4, count, 64), key=mx.random.key(1)).astype(dtype)
    for name, (mine, theirs) in _modules().items():
        assert type(mine) in (CpuRoPE, CpuLlama3RoPE), name
        got = mine(x, offset=offset)
        assert got.dtype == dtype, name
        assert mx.array_equal(got, theirs(x, offset=offset)).item(), name


def test_angles_are_computed_once_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [nn.RoPE(8), nn.RoPE(8), nn.RoPE(8, base=77.0)]
    cpu_rope.install(nn.Sequential(*layers))
    assert layers[0].angles is layers[1].angles is not layers[2].angles
    computed: list[Any] = []
    whole = cpu_rope.Angles._computed
    monkeypatch.setattr(
        cpu_rope.Angles, "_computed", lambda self, *a: computed.append(a) or whole(self, *a)
    )
    x, offset = mx.ones((2, 1, 3, 8)), mx.array([4, 5])
    for rope in layers[:2] * 2:
        rope(x, offset=offset)
    assert len(computed) == 1
    # Another array is another offset, whatever is in it; so is another count.
    layers[0](x, offset=mx.array([4, 5]))
    layers[1](x[:, :, :2], offset=offset)
    assert len(computed) == 3
    layers[0](x, offset=9)
    layers[1](x, offset=9)
    layers[1](x, offset=8)
    assert len(computed) == 5


def test_what_it_does_not_know_stays() -> None:
    neighbours = nn.RoPE(8, traditional=True)
    linear = nn.Linear(4, 4)
    cpu_rope.install(nn.Sequential(neighbours, linear))
    assert type(neighbours) is nn.RoPE
    assert type(linear) is nn.Linear


def test_the_parameters_of_a_model_are_as_before(tiny_model: Callable[..., Any]) -> None:
    module = tiny_model("llama").module
    ropes = [part for part in module.modules() if isinstance(part, CpuRoPE)]
    assert ropes
    assert len({id(rope.angles) for rope in ropes}) == 1
    assert not any("angles" in name for name, _ in tree_flatten(module.parameters()))
