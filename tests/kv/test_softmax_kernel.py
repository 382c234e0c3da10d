"""Every way to compute a softmax's numerators gives those of MLX's own softmax."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxceld.kv import softmax_kernel
from mlxceld.kv.softmax_kernel import NATURAL, ON_HOST, POWERS_OF_TWO, SoftmaxKernel

WAYS = {"natural": NATURAL, "powers of two": POWERS_OF_TWO, "on host": ON_HOST}
CUTS = {"one piece": [], "two": [700], "three": [1, 650]}


def _scores(factor: float = 1.0) -> mx.array:
    scores = 30 * factor * mx.random.normal((3, 5, 720), key=mx.random.key(7))
    hidden = mx.array(mx.finfo(mx.float32).min)
    # Half of a row hidden, a row of which all is, and one whose scores are all alike.
    scores[0, 0, :360] = hidden
    scores[0, 1] = hidden
    scores[0, 2] = 2.0
    return scores


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_they_are_mlx_s_softmax(way: SoftmaxKernel, cuts: list[int]) -> None:
    want = mx.softmax(_scores(), axis=-1)
    scores = _scores(way.factor)
    pieces = mx.split(scores, cuts, axis=-1) if cuts else [scores]
    numerators, total = way.of([mx.contiguous(piece) for piece in pieces])
    assert total.shape == (3, 5, 1)
    assert [part.shape for part in numerators] == [piece.shape for piece in pieces]
    assert mx.allclose(mx.concatenate(numerators, axis=-1) / total, want, atol=1e-6).item()


@pytest.mark.skipif(mx.default_device() != mx.cpu, reason="NumPy reads the memory of a CPU")
def test_on_the_host_pieces_are_overwritten_in_place_views_too() -> None:
    whole = mx.random.normal((4, 6, 50), key=mx.random.key(1))
    want = mx.exp(whole[:, 2:5] - mx.max(whole[:, 2:5], axis=-1, keepdims=True))
    others = mx.array(whole[:, :2])
    mx.eval(want, others)
    (part,), _ = ON_HOST.of([whole[:, 2:5]])
    assert mx.allclose(part, want, atol=1e-6).item()
    assert mx.array_equal(whole[:, :2], others).item()


def test_which_way_is_taken() -> None:
    many = softmax_kernel._MANY_SCORES
    if mx.default_device() != mx.cpu:
        assert softmax_kernel.softmax_kernel_for(many, mx.float32) is NATURAL
        return
    assert softmax_kernel.softmax_kernel_for(many, mx.float32) is ON_HOST
    assert softmax_kernel.softmax_kernel_for(many - 1, mx.float32) is POWERS_OF_TWO
    assert softmax_kernel.softmax_kernel_for(many, mx.bfloat16) is POWERS_OF_TWO


def test_half_precision_is_summed_in_single() -> None:
    scores = mx.random.normal((2, 3, 4000), key=mx.random.key(2)).astype(mx.bfloat16)
    (part,), total = POWERS_OF_TWO.of([scores])
    assert part.dtype == total.dtype == mx.float32
    assert np.isfinite(total.item() if total.size == 1 else float(total.max().item()))
