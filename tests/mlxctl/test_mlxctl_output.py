"""Where the output goes nowhere, mlxctl says so in its own words."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlxctl import tables
from mlxctl.main import run
from mlxctl.output import Output

COMMAND = [sys.executable, "-m", "mlxctl", "service", "install", "--print"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("form", ["table", "json"])
def test_a_full_disk_is_told_in_one_line(form: str) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*COMMAND[:3], "-o", form, *COMMAND[3:]],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "cannot write: [Errno 28]" in ended.stderr


def test_a_reader_that_leaves_is_no_error_to_tell() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(COMMAND, check=False, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert ended.returncode == 1
    assert "Errno" not in ended.stderr


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
@pytest.mark.parametrize("method", ["show", "stream"])
def test_a_closed_output_is_written_nothing(
    monkeypatch: pytest.MonkeyPatch, form: str, method: str
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    getattr(Output(form), method)({"a": 1}, lambda: tables.key_values([("a", "1")]))


def test_a_path_that_no_socket_can_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--socket", str(tmp_path / ("x" * 200)), "status"]) == 3
    assert "the path is too long for a socket" in capsys.readouterr().err


def test_cancelling_nothing_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["requests", "cancel", ""]) == 2
    assert "expected the id of a request" in capsys.readouterr().err
