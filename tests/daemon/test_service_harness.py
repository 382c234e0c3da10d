"""The systemd unit's life under a small manager: it reads the unit, and speaks its protocol."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from daemon_harness import PATIENCE_SECONDS, Manager, clean_environ
from mlxctl.servicefiles import systemd_unit
from tiny_models import TinyModels


class UnitRunner:
    """Runs a unit's ExecStart as systemd would: notified, watched, restarted after a failure."""

    def __init__(self, unit: str, home: Path) -> None:
        parser = configparser.RawConfigParser(strict=False)
        parser.optionxform = str  # type: ignore[assignment]
        parser.read_string(unit)
        self.service = parser["Service"]
        self.manager = Manager()
        self._home = home
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command; returns when it says that it is ready."""
        words = [word.replace("%%", "%") for word in shlex.split(self.service["ExecStart"])]
        microseconds = int(self.service["WatchdogSec"]) * 1_000_000
        environ = clean_environ(
            self._home, **self.manager.environ, WATCHDOG_USEC=str(microseconds // 100)
        )
        process = subprocess.Popen(
            words, env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._started.append(process)
        self.manager.hear(lambda word: word.get("READY") == "1")
        return process

    def after(self, code: int) -> str:
        """What the unit has the manager do when its process has ended with a code."""
        if str(code) in self.service["RestartPreventExitStatus"].split():
            return "stay"
        return "restart" if self.service["Restart"] == "on-failure" and code != 0 else "stay"

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.manager.close()


def status(socket: Path) -> dict[str, object]:
    """What the daemon answers on its admin socket, by mlxctl."""
    done = subprocess.run(
        [sys.executable, "-m", "mlxctl", "--socket", str(socket), "-o", "json", "status"],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture
def unit(tiny_models: TinyModels, tmp_path: Path):
    # A program's path is all that a unit names; this one is the interpreter's.
    program = tmp_path / "mlxceld"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mlxceld "$@"\n')
    program.chmod(0o755)
    arguments = ["--model", str(tiny_models.folder("llama")), "--port", "0"]
    arguments += ["--state-dir", str(tmp_path / "state")]
    runner = UnitRunner(systemd_unit(str(program), arguments, drain_timeout=30), tmp_path)
    yield runner
    runner.close()


def test_started_watched_reloaded_killed_restarted_and_stopped(unit, tmp_path):
    socket = tmp_path / "state" / "admin.sock"
    first = unit.start()
    assert status(socket)["pid"] == first.pid
    unit.manager.hear(lambda word: word.get("WATCHDOG") == "1")

    # ExecReload=/bin/kill -HUP $MAINPID
    assert unit.service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    first.send_signal(signal.SIGHUP)
    told = unit.manager.hear(lambda word: word.get("RELOADING") == "1")
    assert int(told["MONOTONIC_USEC"]) > 0
    unit.manager.hear(lambda word: word.get("READY") == "1")

    os.kill(first.pid, signal.SIGKILL)
    assert unit.after(first.wait(PATIENCE_SECONDS)) == "restart"
    assert socket.is_socket()  # what a dead daemon left is replaced
    second = unit.start()
    assert status(socket)["pid"] == second.pid
    assert socket.stat().st_mode & 0o777 == 0o600

    second.send_signal(signal.SIGTERM)
    unit.manager.hear(lambda word: word.get("STOPPING") == "1")
    assert unit.after(second.wait(PATIENCE_SECONDS)) == "stay"
    assert not socket.exists()


def test_wrong_settings_are_not_started_again(unit, tmp_path):
    unit.service["ExecStart"] += " --admin-listen 0.0.0.0:1"
    words = shlex.split(unit.service["ExecStart"])
    done = subprocess.run(
        words,
        env=clean_environ(tmp_path, **unit.manager.environ),
        capture_output=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert unit.after(done.returncode) == "stay"
    kept = json.loads((tmp_path / "state" / "last-failure.json").read_text())
    assert "admin.listen" in kept["text"]
