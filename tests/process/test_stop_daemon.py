import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlxceld.process.pidfile import StateLock
from mlxceld.process.stop import StopOutcome, stop_daemon

DAEMON = """
import signal, sys
from pathlib import Path
from mlxceld.process.pidfile import StateLock
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
lock = StateLock(Path(sys.argv[1]))
lock.acquire(started_at=0)
print("up", flush=True)
sys.stdin.read()
"""


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.at: dict[float, Callable[[], object]] = {}

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for when in [due for due in self.at if due <= self.now]:
            self.at.pop(when)()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    started = []

    def start(kind: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", DAEMON, str(tmp_path), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_nothing_to_stop(tmp_path: Path) -> None:
    assert stop_daemon(tmp_path, timeout=5).outcome is StopOutcome.NOT_RUNNING


def test_a_daemon_ends_by_sigterm(
    tmp_path: Path, daemon: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = daemon("obedient")
    result = stop_daemon(tmp_path, timeout=30)
    assert result.outcome is StopOutcome.STOPPED
    assert result.holder is not None
    assert result.holder.pid == process.pid
    assert process.wait() == -signal.SIGTERM


def test_a_deaf_daemon_is_left_running_unless_forced(
    tmp_path: Path, daemon: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = daemon("deaf")
    clock = Clock()
    result = stop_daemon(tmp_path, timeout=1, clock=clock, sleep=clock.sleep)
    assert result.outcome is StopOutcome.STILL_RUNNING
    assert clock.now >= 1
    assert process.poll() is None

    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + min(seconds, 1e-4))
    result = stop_daemon(tmp_path, timeout=0.01, force=True, clock=clock, sleep=clock.sleep)
    assert result.outcome is StopOutcome.KILLED
    assert process.wait() == -signal.SIGKILL


def test_one_signal_only_however_long_it_takes(tmp_path: Path) -> None:
    lock, clock, sent = StateLock(tmp_path), Clock(), []
    lock.acquire(started_at=0)
    clock.at[3.0] = lock.release
    result = stop_daemon(
        tmp_path,
        timeout=60,
        clock=clock,
        sleep=clock.sleep,
        send=lambda pid, number: sent.append((pid, number)),
    )
    assert result.outcome is StopOutcome.STOPPED
    assert [number for _, number in sent] == [signal.SIGTERM]


def test_a_process_that_is_just_gone_is_no_error(tmp_path: Path) -> None:
    lock, clock = StateLock(tmp_path), Clock()
    lock.acquire(started_at=0)
    clock.at[0.2] = lock.release

    def gone(pid: int, number: int) -> None:
        raise ProcessLookupError(pid)

    result = stop_daemon(tmp_path, timeout=60, clock=clock, sleep=clock.sleep, send=gone)
    assert result.outcome is StopOutcome.STOPPED


def test_another_users_daemon_is_an_error(tmp_path: Path) -> None:
    lock = StateLock(tmp_path)
    lock.acquire(started_at=0)

    def refused(pid: int, number: int) -> None:
        raise PermissionError(pid)

    with pytest.raises(PermissionError):
        stop_daemon(tmp_path, timeout=60, send=refused)
    lock.release()
