import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlxceld.process.pidfile import NAME, AlreadyRunningError, Holder, StateLock, read_holder

HOLD = """
import sys
from pathlib import Path
from mlxceld.process.pidfile import StateLock
lock = StateLock(Path(sys.argv[1]))
lock.acquire(started_at=12.5)
lock.publish_address("http://127.0.0.1:8484")
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holding() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Processes that hold a folder until their standard input closes."""
    started = []

    def hold(folder: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.communicate()


def test_the_second_daemon_is_told_who_is_there(
    tmp_path: Path, holding: Callable[[Path], subprocess.Popen[str]]
) -> None:
    process = holding(tmp_path)
    with pytest.raises(AlreadyRunningError) as refused:
        StateLock(tmp_path).acquire(started_at=0)
    assert refused.value.holder == Holder(process.pid, "http://127.0.0.1:8484", 12.5)
    text = str(refused.value)
    assert f"process {process.pid} (http://127.0.0.1:8484)" in text
    assert str(tmp_path) in text
    assert "mlxceld stop" in text


def test_a_killed_daemon_leaves_no_lock(
    tmp_path: Path, holding: Callable[[Path], subprocess.Popen[str]]
) -> None:
    process = holding(tmp_path)
    assert read_holder(tmp_path) == Holder(process.pid, "http://127.0.0.1:8484", 12.5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert json.loads((tmp_path / NAME).read_text())["pid"] == process.pid
    assert read_holder(tmp_path) is None
    lock = StateLock(tmp_path)
    lock.acquire(started_at=1.0)
    assert read_holder(tmp_path) == Holder(os.getpid(), "", 1.0)
    lock.release()


def test_what_is_written_replaces_what_a_longer_name_left(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("x" * 500)
    lock = StateLock(tmp_path)
    lock.acquire(started_at=1.0)
    lock.publish_address("http://a-long-name.example:8484")
    lock.publish_address("http://b")
    assert read_holder(tmp_path) == Holder(os.getpid(), "http://b", 1.0)
    lock.release()
    assert read_holder(tmp_path) is None
    assert (tmp_path / NAME).read_bytes() == b""


def test_the_folder_and_the_file_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "state"
    lock = StateLock(folder)
    lock.acquire(started_at=0)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / NAME).stat().st_mode) == 0o600
    lock.release()


def test_a_lock_without_words_is_still_a_lock(tmp_path: Path) -> None:
    with (tmp_path / NAME).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert read_holder(tmp_path) == Holder(None)
        with pytest.raises(AlreadyRunningError, match="another process already runs"):
            StateLock(tmp_path).acquire(started_at=0)


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"pid": "x"}', '{"pid": 3}'])
def test_words_without_a_lock_count_for_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    assert read_holder(tmp_path) is None


def test_who_only_looks_does_not_keep_a_daemon_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / NAME).touch()
    looking = os.open(tmp_path / NAME, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            os.close(looking)

    monkeypatch.setattr("mlxceld.process.pidfile.time.sleep", pause)
    lock = StateLock(tmp_path)
    lock.acquire(started_at=0)
    assert len(pauses) == 2
    lock.release()


def test_two_may_look_at_once(tmp_path: Path) -> None:
    (tmp_path / NAME).touch()
    with (tmp_path / NAME).open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert read_holder(tmp_path) is None


def test_no_folder_no_daemon(tmp_path: Path) -> None:
    assert read_holder(tmp_path / "nothing") is None
