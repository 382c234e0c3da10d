"""Stopping the daemon of a state folder from another process."""

from __future__ import annotations

import enum
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlxceld.process.pidfile import Holder, read_holder

_POLL_SECONDS = 0.05
_KILL_SECONDS = 10.0
"""How long the kernel may take to end a killed process."""


class StopOutcome(enum.Enum):
    """How a stop went."""

    NOT_RUNNING = "not running"
    STOPPED = "stopped"
    KILLED = "killed"
    STILL_RUNNING = "still running"


@dataclass(frozen=True, slots=True)
class StopResult:
    """The outcome, and whom it was about."""

    outcome: StopOutcome
    holder: Holder | None


def stop_daemon(
    state_dir: Path,
    *,
    timeout: float,
    force: bool = False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    send: Callable[[int, int], None] = os.kill,
) -> StopResult:
    """Ask the daemon to finish and wait until it has, up to ``timeout`` seconds.

    With ``force`` a daemon that has not ended by then is killed. Its end is seen by its lock, so
    that a process that merely has the same number is neither waited for nor signalled. Raises
    PermissionError if the daemon is another user's.
    """
    holder = read_holder(state_dir)
    if holder is None:
        return StopResult(StopOutcome.NOT_RUNNING, None)
    asked = False
    deadline = clock() + timeout
    while clock() < deadline:
        # A daemon that has only just begun has not said its number yet.
        if not asked and holder.pid is not None:
            _signal(send, holder.pid, signal.SIGTERM)
            asked = True
        sleep(_POLL_SECONDS)
        found = read_holder(state_dir)
        if found is None or (asked and found.pid not in (None, holder.pid)):
            return StopResult(StopOutcome.STOPPED, holder)
        holder = found if found.pid is not None else holder
    if not force or holder.pid is None:
        return StopResult(StopOutcome.STILL_RUNNING, holder)
    _signal(send, holder.pid, signal.SIGKILL)
    deadline = clock() + _KILL_SECONDS
    while read_holder(state_dir) is not None:
        if clock() >= deadline:
            return StopResult(StopOutcome.STILL_RUNNING, holder)
        sleep(_POLL_SECONDS)
    return StopResult(StopOutcome.KILLED, holder)


def _signal(send: Callable[[int, int], None], pid: int, number: int) -> None:
    try:
        send(pid, number)
    except ProcessLookupError:
        # It has just ended by itself; the lock will tell.
        return
