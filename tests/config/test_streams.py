"""Programs that are started without standard streams, or in a folder that is gone."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from daemon_harness import PATIENCE_SECONDS, clean_environ

MLXCELD = f"{shlex.quote(sys.executable)} -m mlxceld"
MLXCTL = f"{shlex.quote(sys.executable)} -m mlxctl"


def shell(script: str, home: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script, which starts the programs as it likes."""
    return subprocess.run(
        ["/bin/sh", "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env=clean_environ(home, PYTHONPATH=os.pathsep.join(sys.path), **environ),
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (f"{MLXCELD} serve --port 0", 78),
        (f"{MLXCELD} start --detach --port 0", 78),
        (f"{MLXCELD} check-config", 0),
        (f"{MLXCELD} --version", 0),
        (f"{MLXCTL} status", 3),
        (f"{MLXCTL} --help", 0),
    ],
)
def test_the_exit_code_is_the_same_without_streams(
    tmp_path: Path, command: str, code: int, closed: str
) -> None:
    done = shell(f"{command} {closed}", tmp_path)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_opened_later_does_not_take_a_streams_number(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from mlxceld.config.streams import open_missing_streams\n"
        "open_missing_streams()\n"
        "print('lost'); print('lost', file=sys.stderr); assert sys.stdin.read() == ''\n"
        f"fd = os.open({str(tmp_path / 'file')!r}, os.O_WRONLY | os.O_CREAT, 0o600)\n"
        "assert fd > 2\n"
        "os.write(fd, b'kept')\n"
    )
    done = shell(f"{sys.executable} -c {shlex.quote(program)} <&- >&- 2>&-", tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "file").read_text() == "kept"


def test_streams_that_are_open_are_left_alone(tmp_path: Path) -> None:
    program = (
        "import sys; from mlxceld.config.streams import open_missing_streams\n"
        "before = sys.stdin, sys.stdout, sys.stderr\n"
        "open_missing_streams()\n"
        "assert (sys.stdin, sys.stdout, sys.stderr) == before\n"
        "print('heard')\n"
    )
    assert shell(f"{sys.executable} -c {shlex.quote(program)}", tmp_path).stdout == "heard\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (f"{MLXCELD} check-config", 0),
        (f"{MLXCELD} serve --port 0", 78),
        (f"{MLXCELD} start --detach --port 0", 78),
        (f"{MLXCELD} stop", 0),
        (f"{MLXCTL} status", 3),
        (f"{MLXCTL} config check", 0),
    ],
)
def test_a_working_folder_that_was_deleted(tmp_path: Path, command: str, code: int) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = shell(f'cd "{gone}" && rmdir "{gone}" && {command}', tmp_path)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_a_relative_path_is_where_the_folder_was(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"{MLXCELD} serve --port 0 --model ./model"
    done = shell(f'cd "{gone}" && rmdir "{gone}" && {command}', tmp_path)
    assert f"{gone}/model" in done.stderr
    assert "Traceback" not in done.stderr
