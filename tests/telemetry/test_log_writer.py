"""Logging never waits for who reads the log, and an own log file is rotated."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxceld.telemetry import logging as log_setup
from mlxceld.telemetry.log_rotation import RotatingWrite, own_log_file
from mlxceld.telemetry.log_writer import QUEUE_BYTES, LineWriter, write_to

PATIENCE_SECONDS = 30


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in ("", "mlxceld", "mlxceld.audit")}
    yield
    for handler in [h for h in root.handlers if h.name == "mlxceld"]:
        root.removeHandler(handler)
        handler.close()
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.captureWarnings(False)


class Gate:
    """A write that lets nothing pass until it is opened, like a pipe that nobody reads."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.text = ""

    def __call__(self, data: bytes) -> None:
        self.entered.set()
        assert self.opened.wait(PATIENCE_SECONDS)
        self.text += data.decode()


def test_a_write_that_blocks_costs_lines_and_no_time() -> None:
    gate = Gate()
    writer = LineWriter(gate, lambda count: f"{count} dropped", limit=20)
    writer.put("first")
    assert gate.entered.wait(PATIENCE_SECONDS)  # it is in the write now, and blocks there
    for number in range(10):
        writer.put(f"line {number}")  # 7 bytes each: two fit
    assert writer.dropped == 8
    assert not writer.flush(0)
    gate.opened.set()
    assert writer.flush(PATIENCE_SECONDS)
    writer.put("after")
    writer.close(PATIENCE_SECONDS)
    assert gate.text == "first\nline 0\nline 1\n8 dropped\nafter\n"


def test_a_write_that_fails_is_counted_and_the_next_is_tried() -> None:
    seen: list[bytes] = []

    def write(data: bytes) -> None:
        seen.append(data)
        if len(seen) == 1:
            raise BrokenPipeError

    writer = LineWriter(write, str)
    writer.put("lost")
    assert writer.flush(PATIENCE_SECONDS)
    writer.put("kept")
    writer.close(PATIENCE_SECONDS)
    assert (seen, writer.dropped) == ([b"lost\n", b"kept\n"], 1)


def test_nobody_reads_standard_error() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream, os.fdopen(reading, "rb") as reader:
        log_setup.configure("info", "json", stream=stream)
        log = logging.getLogger("mlxceld.test")
        count = 2 * QUEUE_BYTES // 1000
        for _ in range(count):
            log.info("x" * 1000)  # twice what is kept, and nobody reads: this returns
        dropped = log_setup.dropped_lines()
        assert 0 < dropped < count
        lines: list[dict[str, str]] = []
        told = threading.Event()

        def read() -> None:
            for raw in reader:
                lines.append(json.loads(raw))
                if "dropped" in lines[-1]["message"]:
                    told.set()
                    return

        thread = threading.Thread(target=read)
        thread.start()
        assert told.wait(PATIENCE_SECONDS)
        thread.join()
        assert lines[-1]["message"].startswith(f"{dropped} log lines were dropped")
        assert lines[-1]["level"] == "warning"
        assert len(lines) == count - dropped + 1


def test_a_pipe_that_does_not_block_gets_all_of_it() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    data = b"y" * 1_000_000
    got = bytearray()

    def read() -> None:
        while len(got) < len(data):
            got.extend(os.read(reading, 1 << 16))

    thread = threading.Thread(target=read)
    thread.start()
    write_to(writing)(data)
    thread.join()
    os.close(reading)
    os.close(writing)
    assert bytes(got) == data


def test_what_was_logged_is_written_before_the_process_ends() -> None:
    code = (
        "import logging\n"
        "from mlxceld.telemetry import logging as log_setup\n"
        "log_setup.configure('info', 'json')\n"
        "for n in range(2000):\n"
        "    logging.getLogger('mlxceld').info('line %d', n)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    lines = [json.loads(line)["message"] for line in ended.stderr.splitlines()]
    assert lines == [f"line {n}" for n in range(2000)]


def test_a_reader_that_never_reads_holds_up_no_end() -> None:
    code = (
        "import logging\n"
        "from mlxceld.telemetry import logging as log_setup\n"
        "log_setup.configure('info', 'json')\n"
        "for n in range(200):\n"
        "    logging.getLogger('mlxceld').info('z' * 1000)\n"
    )
    reading, writing = os.pipe()
    with subprocess.Popen([sys.executable, "-c", code], stderr=writing) as process:
        os.close(writing)
        assert process.wait(60) == 0
    os.close(reading)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def test_a_large_file_is_put_aside_and_few_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "mlxceld.log"
    fd = _open(path)
    write = RotatingWrite(fd, path, max_bytes=10, kept=2)
    for text in (b"one 111111\n", b"two\n", b"two again\n", b"three 3333\n", b"four\n"):
        write(text)
    os.write(fd, b"a crash\n")  # the descriptor leads to the new file, whoever writes to it
    assert path.read_text() == "four\na crash\n"
    assert path.with_name("mlxceld.log.1").read_text() == "three 3333\n"
    assert path.with_name("mlxceld.log.2").read_text() == "two\ntwo again\n"
    assert len(list(tmp_path.iterdir())) == 3
    assert path.stat().st_mode & 0o777 == 0o600
    os.close(fd)


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "mlxceld.log"
    fd = _open(path)
    write = RotatingWrite(fd, path)
    write(b"before\n")
    path.rename(tmp_path / "elsewhere")
    write(b"after\n")
    assert path.read_text() == "after\n"
    assert (tmp_path / "elsewhere").read_text() == "before\n"
    os.close(fd)


def test_where_it_cannot_be_rotated_it_grows_on(tmp_path: Path) -> None:
    path = tmp_path / "mlxceld.log"
    fd = _open(path)
    (tmp_path / "mlxceld.log.1").mkdir()
    (tmp_path / "mlxceld.log.1" / "full").touch()
    write = RotatingWrite(fd, path, max_bytes=1, kept=1)
    for text in (b"one\n", b"two\n"):
        write(text)
    assert path.read_text() == "one\ntwo\n"
    os.close(fd)


def test_only_the_daemons_own_file_is_rotated(tmp_path: Path) -> None:
    own, other = tmp_path / "mlxceld.log", tmp_path / "mine.log"
    for path, found in ((own, own), (other, None)):
        fd = _open(path)
        assert own_log_file(fd, own, {"XPC_SERVICE_NAME": "0"}, platform="linux") == found
        os.close(fd)
    reading, writing = os.pipe()
    assert own_log_file(writing, own, {"XPC_SERVICE_NAME": "0"}, platform="darwin") is None
    os.close(reading)
    os.close(writing)
