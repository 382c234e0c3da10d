"""Whether this machine runs on its battery."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_SUPPLIES = Path("/sys/class/power_supply")

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
    if sys.platform == "darwin":
        return _macos_on_battery()
    return discharging(_SUPPLIES)


def discharging(supplies: Path) -> bool:
    """Whether a folder like Linux's power supplies shows a battery in use and no line power."""
    battery = False
    for supply in sorted(supplies.glob("*")):
        kind = _read(supply / "type")
        if kind in ("Mains", "USB") and _read(supply / "online") == "1":
            return False
        # A mouse has a battery too; its scope is a device.
        if kind == "Battery" and _read(supply / "scope") != "Device":
            battery = battery or _read(supply / "status") == "Discharging"
    return battery


def _macos_on_battery() -> bool:
    try:
        answer = subprocess.run(
            ["/usr/bin/pmset", "-g", "batt"], capture_output=True, text=True, timeout=2, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "'Battery Power'" in answer.stdout


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
