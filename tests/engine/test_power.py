from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from engine_harness import Clock
from mlxceld.engine.power import PowerSource, on_battery


@pytest.mark.parametrize(
    ("battery", "expected"),
    [
        (None, False),
        (SimpleNamespace(power_plugged=True), False),
        (SimpleNamespace(power_plugged=False), True),
        # Nobody can tell.
        (SimpleNamespace(power_plugged=None), False),
    ],
)
def test_a_battery_in_use_without_line_power(
    monkeypatch: pytest.MonkeyPatch, battery: Any, expected: bool
) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    assert on_battery() is expected


def test_a_system_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(psutil, "sensors_battery", fail, raising=False)
    assert not on_battery()
    monkeypatch.delattr(psutil, "sensors_battery")
    assert not on_battery()


def test_an_answer_is_good_for_a_while() -> None:
    clock, answers = Clock(), [True, False]
    source = PowerSource(clock, lambda: answers.pop(0))
    assert source.on_battery()
    clock.now += 29
    assert source.on_battery()
    clock.now += 2
    assert not source.on_battery()
    assert answers == []


def test_this_machine_can_be_asked() -> None:
    assert on_battery() in (True, False)
