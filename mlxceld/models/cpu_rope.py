"""Rotary positions whose angles are computed once a pass, where there is no GPU.

MLX composes ``mx.fast.rope`` of some thirty operations on a CPU. Most of them compute the cosines
and sines of the angles, which are the same for queries and keys and in every layer. Here they are
kept until other positions are asked for; results are those of ``mx.fast.rope``, bit by bit.
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.rope_utils import Llama3RoPE

Offset = int | mx.array


class Angles:
    """Cosines and sines of the newest positions, for all layers that rotate alike.

    ``frequencies`` is float32 ``[width / 2]``, in radians a position.
    """

    def __init__(self, frequencies: mx.array, scale: float) -> None:
        self._frequencies = frequencies
        self._scale = scale
        self._offset: Offset | None = None
        self._count = 0
        self._turns: tuple[mx.array, mx.array] | None = None

    def at(self, offset: Offset, count: int) -> tuple[mx.array, mx.array]:
        """``(cos, sin)`` for ``count`` positions from ``offset`` on, float32.

        An offset for all gives ``[1, 1, count, width]``, an array of one a row
        ``[rows, 1, count, width]``. The sines of the first half are negative, as the second half
        of what is rotated is taken away from the first. An array is known again by identity.
        """
        if self._turns is None or count != self._count or not self._is_known(offset):
            self._offset, self._count = offset, count
            self._turns = self._computed(offset, count)
        return self._turns

    def _is_known(self, offset: Offset) -> bool:
        if isinstance(offset, mx.array) or isinstance(self._offset, mx.array):
            return offset is self._offset
        return offset == self._offset

    def _computed(self, offset: Offset, count: int) -> tuple[mx.array, mx.array]:
        first = mx.array(offset).reshape(-1, 1, 1, 1)
        places = (mx.arange(count)[:, None] + first).astype(mx.float32) * self._scale
        theta = places * self._frequencies
        cos, sin = mx.cos(theta), mx.sin(theta)
        return mx.concatenate([cos, cos], axis=-1), mx.concatenate([-sin, sin], axis=-1)


def rotated(x: mx.array, angles: Angles, width: int, offset: Offset) -> mx.array:
    """``x`` of shape ``[rows, heads, n, at least width]`` with its first ``width`` turned."""
    cos, sin = angles.at(offset, x.shape[2])
    rest = None
    if x.shape[-1] > width:
        x, rest = x[..., :width], x[..., width:]
    half = width // 2
    swapped = mx.concatenate([x[..., half:], x[..., :half]], axis=-1)
    turned = x * cos.astype(x.dtype) + swapped * sin.astype(x.dtype)
    return turned if rest is None else mx.concatenate([turned, rest], axis=-1)


class CpuRoPE(nn.RoPE):  # type: ignore[misc]
    """MLX's module with :class:`Angles` that its layers share."""

    def __call__(self, x: mx.array, offset: Offset = 0) -> mx.array:
        """As ``nn.RoPE``."""
        return rotated(x, self.angles, self.dims, offset)


class CpuLlama3RoPE(Llama3RoPE):  # type: ignore[misc]
    """mlx-lm's module for scaled frequencies, in the same way."""

    def __call__(self, x: mx.array, offset: Offset = 0) -> mx.array:
        """As ``Llama3RoPE``."""
        return rotated(x, self.angles, self.dims, offset)


def install(module: Any) -> None:
    """Let a model's rotary modules use it; only where it is computed on a CPU.

    Those of other kinds, and those that turn neighbours instead of halves, stay as they are.
    """
    if mx.default_device() != mx.cpu:
        return
    known: dict[tuple[float, str], Angles] = {}
    for part in module.modules():
        if type(part) not in (nn.RoPE, Llama3RoPE) or part.traditional or part.dims % 2:
            continue
        plain = type(part) is nn.RoPE
        frequencies = _frequencies(part.dims, part.base) if plain else 1.0 / part._freqs
        scale = float(part.scale) if plain else 1.0
        key = (scale, repr(frequencies.tolist()))
        # Not an attribute that the module would count among its parameters.
        part.angles = known.setdefault(key, Angles(frequencies, scale))
        part.__class__ = CpuRoPE if plain else CpuLlama3RoPE


def _frequencies(width: int, base: float) -> mx.array:
    """base^(-2i/width) for i below width/2, as ``mx.fast.rope`` computes them, float32."""
    half = width // 2
    steps = mx.arange(0, -half, -1, dtype=mx.float32)
    return mx.exp(steps * (math.log(base) / half))
