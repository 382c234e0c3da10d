import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon_harness import get, run_to_end
from mlxceld.process.pidfile import read_holder
from tiny_models import TinyModels


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "state"
    yield folder
    holder = read_holder(folder)
    if holder is not None and holder.pid is not None:
        os.kill(holder.pid, signal.SIGKILL)


def test_start_kill_start_stop(tmp_path: Path, state: Path, tiny_models: TinyModels) -> None:
    # Relative paths must be found again from wherever the daemon is.
    model = os.path.relpath(tiny_models.folder("llama"))
    start = ("start", "--detach", "--port", "0", "--model", model)
    (tmp_path / "settings.yaml").write_text("log.level: info\n")
    common = ("--state-dir", str(state), "--config", os.path.relpath(tmp_path / "settings.yaml"))

    first = run_to_end(*start, *common, home=tmp_path)
    assert first.returncode == 0, first.stderr
    killed = read_holder(state)
    assert killed is not None
    assert killed.pid is not None
    assert first.stdout == f"mlxceld serves at {killed.address} (process {killed.pid})\n"
    assert "loading" in first.stderr
    assert "checking how rows can be batched" in first.stderr
    assert "checking that what is reused" in first.stderr
    assert get(f"{killed.address}/readyz")[0] == 200

    # Read again from the daemon's own folder, they are the same.
    control = [sys.executable, "-m", "mlxctl", "--socket", str(state / "admin.sock"), "-o", "json"]
    reloaded = subprocess.run(
        [*control, "config", "reload"], capture_output=True, text=True, check=True
    )
    assert json.loads(reloaded.stdout)["needs_restart"] == {}

    again = run_to_end(*start, *common, home=tmp_path)
    assert again.returncode == 1
    assert f"process {killed.pid} ({killed.address}) already runs" in again.stderr

    os.kill(killed.pid, signal.SIGKILL)
    second = run_to_end(*start, *common, home=tmp_path)
    assert second.returncode == 0, second.stderr
    holder = read_holder(state)
    assert holder is not None
    assert holder.pid != killed.pid
    with urllib.request.urlopen(
        urllib.request.Request(
            f"{holder.address}/v1/completions",
            data=json.dumps({"prompt": "hello", "max_tokens": 4, "ignore_eos": True}).encode(),
            headers={"Content-Type": "application/json"},
        ),
        timeout=60,
    ) as response:
        assert json.load(response)["usage"]["completion_tokens"] == 4

    stopped = run_to_end("stop", "--state-dir", str(state), home=tmp_path)
    assert stopped.returncode == 0, stopped.stderr
    assert stopped.stdout == f"stopped: process {holder.pid} ({holder.address})\n"
    assert read_holder(state) is None
    assert '"stopped"' in (state / "mlxceld.log").read_text().splitlines()[-1]

    nothing = run_to_end("stop", "--state-dir", str(state), home=tmp_path)
    assert nothing.returncode == 0
    assert nothing.stderr == f"no daemon runs with the state folder {state}\n"
