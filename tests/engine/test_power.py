from __future__ import annotations

from pathlib import Path

import pytest

from engine_harness import Clock
from mlxceld.engine.power import PowerSource, discharging, on_battery


def supply(root: Path, name: str, **values: str) -> None:
    folder = root / name
    folder.mkdir()
    for key, value in values.items():
        (folder / key).write_text(value + "\n")


@pytest.mark.parametrize(
    ("line", "battery", "expected"),
    [
        (None, None, False),
        ("1", None, False),
        ("0", "Discharging", True),
        ("1", "Discharging", False),
        ("0", "Full", False),
        (None, "Discharging", True),
        (None, "Charging", False),
    ],
)
def test_a_battery_in_use_without_line_power(
    tmp_path: Path, line: str | None, battery: str | None, expected: bool
) -> None:
    if line is not None:
        supply(tmp_path, "AC", type="Mains", online=line)
    if battery is not None:
        supply(tmp_path, "BAT0", type="Battery", status=battery)
    assert discharging(tmp_path) is expected


def test_the_battery_of_a_mouse_does_not_count(tmp_path: Path) -> None:
    supply(tmp_path, "hid", type="Battery", scope="Device", status="Discharging")
    assert not discharging(tmp_path)
    assert not discharging(tmp_path / "nowhere")


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
