"""Keys and values of random bits, for what only stores and returns them."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from mlxceld.kv.slabs import KeysAndValues, LayerShape

# Unequal widths, one head, no values at all, two types: what models do.
SHAPES = (
    LayerShape(2, 4, 3, mx.float32, mx.float32),
    LayerShape(1, 5, 2, mx.bfloat16, mx.bfloat16),
    LayerShape(1, 3, 0, mx.float16, mx.bfloat16),
)


def random_rows(
    seed: int, tokens: int, shapes: Sequence[LayerShape] = SHAPES
) -> list[KeysAndValues]:
    """``[1, kv_heads, tokens, width]`` a layer; any bits, also those of no number."""
    random = np.random.default_rng(seed)

    def bits(heads: int, width: int, dtype: mx.Dtype) -> mx.array:
        unsigned = np.dtype(f"u{dtype.size}")
        shape = (1, heads, tokens, width)
        drawn = random.integers(0, 1 << 8 * dtype.size, shape, dtype=unsigned)
        return mx.array(drawn).view(dtype) if width else mx.zeros(shape, dtype)

    rows = [
        (
            bits(shape.kv_heads, shape.key_width, shape.key_dtype),
            bits(shape.kv_heads, shape.value_width, shape.value_dtype),
        )
        for shape in shapes
    ]
    mx.eval(rows)
    return rows


def cut(rows: Sequence[KeysAndValues], start: int, stop: int) -> list[KeysAndValues]:
    """Tokens ``start`` to ``stop`` of every layer."""
    return [(keys[:, :, start:stop], values[:, :, start:stop]) for keys, values in rows]


def require_same(got: Sequence[KeysAndValues], want: Sequence[KeysAndValues]) -> None:
    """Raise AssertionError unless every layer is the same to the bit."""
    assert len(got) == len(want)
    for layer, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        for name, a, b in zip(("keys", "values"), mine, theirs, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype), f"layer {layer}, {name}"
            if a.size:
                unsigned = {2: mx.uint16, 4: mx.uint32}[a.dtype.size]
                same = mx.array_equal(a.view(unsigned), b.view(unsigned)).item()
                assert same, f"layer {layer}, {name}: other bits"
