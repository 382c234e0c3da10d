"""How the operating system treats the daemon: its service, its limits and its clock."""

from __future__ import annotations

import plistlib
import resource
from collections.abc import Iterator
from pathlib import Path

from mlxctl import tables
from mlxctl.checks.scene import Finding, Scene

OPEN_FILES = 8192
"""What the daemon raises its limit of open files to, where it may."""

_CLOCK_SECONDS = 5.0
_EARLIEST_UNIX = 1_735_689_600  # 2025: no clock that is set is before the program


def check_service(scene: Scene) -> Iterator[Finding]:
    """How launchd treats the daemon."""
    from mlxctl.managers import manager_of

    file = manager_of("launchd").file
    if not file.is_file():
        return
    try:
        kind = plistlib.loads(file.read_bytes()).get("ProcessType")
    except (plistlib.InvalidFileException, ValueError) as error:
        yield Finding("launchd", "wrong", f"{file}: {error}", "mlxctl service install")
        return
    if kind == "Interactive":
        yield Finding("launchd", "ok", "ProcessType Interactive")
    else:
        yield Finding(
            "launchd",
            "slow",
            f"ProcessType is {kind or 'not set'}: macOS keeps it to the slow cores",
            "mlxctl service install writes the file anew",
        )


def check_open_files(scene: Scene) -> Iterator[Finding]:
    """How many connections the daemon can have."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    where = "this shell"
    pid = (scene.status or {}).get("pid")
    limits = Path(f"/proc/{pid}/limits")
    if pid and limits.is_file():
        row = next(
            line for line in limits.read_text().splitlines() if line.startswith("Max open files")
        )
        word = row.split()[3]
        hard, where = (-1 if word == "unlimited" else int(word)), "the daemon"
    if hard == resource.RLIM_INFINITY or hard >= OPEN_FILES:
        yield Finding("open files", "ok", f"{where} may open {OPEN_FILES} or more")
    else:
        yield Finding(
            "open files",
            "note",
            f"{where} may open {hard}, and each connection is one",
            f"LimitNOFILE={OPEN_FILES} in the unit, or ulimit -n {OPEN_FILES}",
        )


def check_clock(scene: Scene) -> Iterator[Finding]:
    """Whether the clock is set, and has not jumped since the daemon's start."""
    now = scene.ctl.wall()
    if now < _EARLIEST_UNIX:
        yield Finding("clock", "wrong", "the clock is not set", "set it: timedatectl set-ntp true")
        return
    if scene.status is not None:
        should = scene.status["started_at_unix"] + scene.status["uptime_seconds"]
        if abs(now - should) > _CLOCK_SECONDS:
            yield Finding(
                "clock",
                "note",
                f"the clock was set by {tables.duration_text(abs(now - should))} since the"
                " daemon's start (or the machine slept)",
                "times of idle entries are not affected",
            )
            return
    yield Finding("clock", "ok", "set")
