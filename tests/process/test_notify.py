import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxceld.process.notify import Notifier


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    name = f"\0mlxceld-test-{os.getpid()}-{time.monotonic_ns()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        sock.bind(name)
        yield sock


def notifier(manager: socket.socket, **environ: str) -> Notifier:
    name = manager.getsockname()
    address = "@" + name[1:].decode() if isinstance(name, bytes) else str(name)
    return Notifier.from_environ({"NOTIFY_SOCKET": address, **environ})


def test_words_of_a_life(manager: socket.socket) -> None:
    telling = notifier(manager)
    telling.extend(1.5, "loading weights\n3/8")
    assert manager.recv(4096) == b"EXTEND_TIMEOUT_USEC=1500000\nSTATUS=loading weights 3/8"
    telling.ready("serving tiny")
    assert manager.recv(4096) == b"READY=1\nSTATUS=serving tiny"
    telling.status("busy")
    assert manager.recv(4096) == b"STATUS=busy"
    telling.watchdog()
    assert manager.recv(4096) == b"WATCHDOG=1"
    telling.stopping("draining")
    assert manager.recv(4096) == b"STOPPING=1\nSTATUS=draining"


def test_a_reload_carries_the_monotonic_time(manager: socket.socket) -> None:
    before = time.monotonic_ns() // 1000
    notifier(manager).reloading()
    first, second = manager.recv(4096).decode().split("\n")
    assert first == "RELOADING=1"
    name, _, value = second.partition("=")
    assert name == "MONOTONIC_USEC"
    assert before <= int(value) <= time.monotonic_ns() // 1000


def test_a_socket_in_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a short name, whatever the folder's length
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        sock.bind("notify")
        Notifier("notify").watchdog()
        assert sock.recv(100) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid() + 1)}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
    ],
)
def test_the_watchdog_is_ours_only_if_meant_for_us(
    environ: dict[str, str], expected: float | None
) -> None:
    named = Notifier.from_environ({"NOTIFY_SOCKET": "@x", **environ})
    assert named.watchdog_seconds == expected
    assert Notifier.from_environ(environ).watchdog_seconds is None


def test_without_a_manager_nothing_happens(caplog: pytest.LogCaptureFixture) -> None:
    telling = Notifier.from_environ({})
    telling.ready("x")
    telling.watchdog()
    assert not caplog.records


def test_a_manager_that_is_gone_is_complained_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    telling = Notifier(str(tmp_path / "gone"))
    telling.ready("x")
    telling.watchdog()
    assert len(caplog.records) == 1
    assert str(tmp_path / "gone") in caplog.text


def fill_queue(manager: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sock.sendto(b"STATUS=filler", manager.getsockname())


@pytest.mark.skipif(sys.platform != "linux", reason="how Linux queues datagrams")
def test_a_full_queue_loses_only_what_comes_again(
    manager: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    telling = notifier(manager)
    fill_queue(manager)
    telling.watchdog()
    telling.extend(1, "loading")
    assert not caplog.records
    waiting = threading.Thread(target=telling.ready, args=("serving",))
    waiting.start()
    heard = [manager.recv(4096)]
    while heard[-1] == b"STATUS=filler":
        heard.append(manager.recv(4096))
    waiting.join()
    assert heard[-1] == b"READY=1\nSTATUS=serving"
    assert not caplog.records
