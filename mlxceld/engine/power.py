"""Whether this machine runs on its battery."""

from __future__ import annotations

from collections.abc import Callable

import psutil

_FRESH_SECONDS = 30.0
"""For how long an answer is good."""


class PowerSource:
    """Asks the system, seldom; ``clock`` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float], ask: Callable[[], bool] | None = None) -> None:
        self._clock = clock
        self._ask = ask or on_battery
        self._answer = False
        self._asked_at: float | None = None

    def on_battery(self) -> bool:
        """Whether the battery is in use now; False where nobody can tell."""
        now = self._clock()
        if self._asked_at is None or now - self._asked_at >= _FRESH_SECONDS:
            self._asked_at, self._answer = now, self._ask()
        return self._answer


def on_battery() -> bool:
    """Whether the battery is in use; False where nobody can tell."""
    # Of some systems psutil has no such function, and a machine may have no battery.
    ask = getattr(psutil, "sensors_battery", None)
    try:
        battery = ask() if ask is not None else None
    except (OSError, ValueError):
        return False
    return battery is not None and battery.power_plugged is False
