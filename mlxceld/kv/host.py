"""Reading evaluated arrays as plain Python values, with their types."""

from __future__ import annotations

from typing import cast

import mlx.core as mx


def as_float(array: mx.array) -> float:
    """The one value of an array, as a float; waits for it."""
    return float(cast(float, array.item()))


def as_ints(array: mx.array) -> list[int]:
    """The values of a 1-D integer array; waits for them."""
    return cast("list[int]", array.tolist())


def as_floats(array: mx.array) -> list[float]:
    """The values of a 1-D array of numbers; waits for them."""
    return cast("list[float]", array.tolist())
