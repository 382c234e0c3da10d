"""How a number went while it was watched, in one line of a terminal."""

from __future__ import annotations

from collections import deque
from typing import Any

_CELLS = 40
_STEPS = "▁▂▃▄▅▆▇█"
_PLAIN = "_.-=+*#@"


class HitRates:
    """The hit rate of each interval between two readings; intervals without lookups are gaps."""

    def __init__(self, cells: int = _CELLS) -> None:
        self._rates: deque[float | None] = deque(maxlen=cells)
        self._before: tuple[int, int] | None = None

    def add(self, stats: dict[str, Any]) -> None:
        """Take the next reading of ``cache/stats``."""
        hits = stats["hits"] + stats["snapshot_hits"]
        lookups = stats["lookups"] + stats["snapshot_lookups"]
        before, self._before = self._before, (hits, lookups)
        # A daemon that was started anew counts from nothing.
        if before is None or lookups < before[1]:
            return
        asked = lookups - before[1]
        self._rates.append((hits - before[0]) / asked if asked else None)

    def line(self, *, encoding: str | None) -> str:
        """The rates, the newest last; plain characters where the terminal has no others."""
        steps = _STEPS if _can_write(_STEPS, encoding) else _PLAIN
        top = len(steps) - 1
        return "".join(
            " " if rate is None else steps[min(top, max(0, round(rate * top)))]
            for rate in self._rates
        )


def _can_write(text: str, encoding: str | None) -> bool:
    try:
        text.encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True
