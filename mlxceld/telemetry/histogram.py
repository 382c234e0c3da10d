"""A counted distribution that one thread fills and any thread may read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """What a histogram held at one moment.

    ``counts`` has one more item than ``bounds``: the last counts what lies above every bound.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """How many values were observed."""
        return sum(self.counts)


class Histogram:
    """Counts values into fixed buckets; ``bounds`` are upper bounds, inclusive, rising."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def snapshot(self) -> HistogramSnapshot:
        """An immutable copy."""
        return HistogramSnapshot(self._bounds, tuple(self._counts), self._total)
