"""Running out of files fills no log."""

import asyncio
import errno
import logging
import socket
from collections.abc import Iterator

import pytest

from mlxceld.process.exhaustion import ExhaustionHandler

resource = pytest.importorskip("resource")


class _Loop(asyncio.SelectorEventLoop):
    """A loop whose time stands still until told."""

    now = 1000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def loop() -> Iterator[_Loop]:
    made = _Loop()
    made.set_exception_handler(ExhaustionHandler())
    yield made
    made.close()


def test_a_backlog_of_failures_is_one_line(loop: _Loop, caplog: pytest.LogCaptureFixture) -> None:
    """The loop's own report, from a listener that has no file left for who connects."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        listener.setblocking(False)
        with socket.create_connection(listener.getsockname()):
            highest = listener.dup()
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest.fileno() + 1, hard))
            try:
                loop._accept_connection(asyncio.Protocol, listener, backlog=50)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                highest.close()
        loop.remove_reader(listener)
    # The loop means to listen again in a second; by then the socket is closed.
    loop.now += 2
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert [(r.levelname, r.exc_info) for r in caplog.records] == [("ERROR", None)]
    assert caplog.messages == [
        f"new connections have to wait: [Errno {errno.EMFILE}] Too many open files"
    ]


def test_it_is_said_again_after_a_while(loop: _Loop, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as sock:
        report = {
            "message": "socket.accept() out of system resource",
            "exception": OSError(errno.ENFILE, "Too many open files in system"),
            "socket": sock,
        }
        for loop.now in (1000.0, 1009.0, 1010.0, 1011.0):
            loop.call_exception_handler(report)
    assert len(caplog.messages) == 2


def test_other_reports_are_left_alone(loop: _Loop, caplog: pytest.LogCaptureFixture) -> None:
    loop.call_exception_handler({"message": "odd", "exception": ValueError("ours")})
    loop.call_exception_handler({"message": "lost", "exception": OSError(errno.EMFILE, "no file")})
    assert caplog.messages == ["odd", "lost"]
    assert all(record.exc_info and record.levelno == logging.ERROR for record in caplog.records)
