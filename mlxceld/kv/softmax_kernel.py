"""The numerators of a softmax: much of attention's time where there is no GPU.

MLX's exp on a CPU takes about 12 ns an element on the machine this was measured on, its power of 2
takes 4, NumPy's exp half a nanosecond. NumPy works on evaluated arrays only, which cuts the lazy
graph of a forward pass at each layer: worth it for many scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

_MANY_SCORES = 1 << 15
"""Scores of one call from which on NumPy's exp pays for the evaluation in between."""

Numerators = tuple[list[mx.array], mx.array]
"""e to the power of scores less the highest of their row, piece by piece, and each row's sum."""


@dataclass(frozen=True, slots=True)
class SoftmaxKernel:
    """One way to compute the numerators of a softmax over the last axes of several pieces.

    ``factor`` is what scores are multiplied by before they are given to ``of``. The pieces have
    equal shapes but for the last axis, belong to the caller alone, and may be overwritten. Results
    are float32, the sum with a last axis of 1.
    """

    factor: float
    of: Callable[[Sequence[mx.array]], Numerators]


def softmax_kernel_for(scores: int, dtype: mx.Dtype) -> SoftmaxKernel:
    """The quickest way for so many scores of that type on the default device."""
    if mx.default_device() != mx.cpu:
        return NATURAL
    if dtype == mx.float32 and scores >= _MANY_SCORES:
        return ON_HOST
    return POWERS_OF_TWO


def _lazily(
    power: Callable[[mx.array], mx.array],
) -> Callable[[Sequence[mx.array]], Numerators]:
    def numerators(pieces: Sequence[mx.array]) -> Numerators:
        highest = mx.max(pieces[0], axis=-1, keepdims=True)
        for piece in pieces[1:]:
            highest = mx.maximum(highest, mx.max(piece, axis=-1, keepdims=True))
        results = [power((piece - highest).astype(mx.float32)) for piece in pieces]
        total = results[0].sum(axis=-1, keepdims=True)
        for result in results[1:]:
            total = total + result.sum(axis=-1, keepdims=True)
        return results, total

    return numerators


def _on_host(pieces: Sequence[mx.array]) -> Numerators:
    """The same in place, in the pieces' own memory."""
    mx.eval(*pieces)
    views = [np.asarray(memoryview(piece)) for piece in pieces]  # type: ignore[arg-type]
    highest = views[0].max(axis=-1, keepdims=True)
    for view in views[1:]:
        np.maximum(highest, view.max(axis=-1, keepdims=True), out=highest)
    total = np.zeros_like(highest)
    for view in views:
        np.subtract(view, highest, out=view)
        np.exp(view, out=view)
        total += view.sum(axis=-1, keepdims=True)
    return list(pieces), mx.array(total)


NATURAL = SoftmaxKernel(1.0, _lazily(mx.exp))
"""MLX's exp."""

POWERS_OF_TWO = SoftmaxKernel(1.0 / math.log(2.0), _lazily(lambda x: mx.power(2.0, x)))
"""MLX's power of 2, for scores that were scaled for it."""

ON_HOST = SoftmaxKernel(1.0, _on_host)
"""NumPy's exp, in place; float32 on a CPU."""
