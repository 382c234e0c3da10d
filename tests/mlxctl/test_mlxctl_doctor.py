"""What the doctor finds where something is wrong."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from mlxctl.context import Ctl
from mlxctl.diagnosis import examine
from mlxctl.errors import CtlError, ExitCode
from mlxctl.main import run
from mlxctl.modelfiles import broken_files


class Client:
    """A daemon that answers with what it is given."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    def get(self, path: str, **query: Any) -> Any:
        found = self._answers.get(path.replace("/", "_"))
        if found is None:
            raise CtlError(
                "unreachable", "no daemon is running", ExitCode.UNREACHABLE, hint="start"
            )
        return found


STATUS = {
    "fault": "",
    "ready": True,
    "version": "1",
    "state": "ready",
    "detail": "",
    "host": "127.0.0.1",
    "port": 1,
    "pid": 0,
    "started_at_unix": 2e9,
    "uptime_seconds": 10.0,
    "memory": {"limit": 4 * 2**30},
    "model": {"device": "cpu", "weight_bytes": 2**30, "path": "/absent"},
}
STATS = {
    "enabled": True,
    "capacity_bytes": 2**30,
    "snapshot_capacity_bytes": 0,
    "rejections_oversized": 0,
    "snapshot_rejections_oversized": 0,
    "inserts": 5,
    "snapshot_inserts": 0,
    "paged_block_size": 16,
    "paged_blocks_live": 2,
    "paged_bytes_in_use": 2048,
}


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "MLXCEL_CONFIG", "STATE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)

    def examined(now: float = 2e9 + 10, **answers: Any) -> dict[str, tuple[str, str, str]]:
        ctl = Ctl(options={"socket": tmp_path / "admin.sock"}, wall=lambda: now)
        ctl.__dict__["client"] = Client(**answers)
        return {one.check: (one.level, one.text, one.fix) for one in examine(ctl)}

    return examined


def test_without_a_daemon_the_next_command_is_the_fix(found):
    assert found()["daemon"] == ("wrong", "no daemon is running", "start")


def test_a_fault_and_a_failed_load_are_wrong_and_a_load_is_not(found):
    assert found(status={**STATUS, "fault": "boom"}, cache_stats=STATS)["daemon"][0] == "wrong"
    for state, level in (("loading", "note"), ("failed", "wrong")):
        status = {**STATUS, "ready": False, "state": state}
        assert found(status=status, cache_stats=STATS)["daemon"][0] == level


def test_budgets_that_do_not_fit_beside_the_model(found):
    assert found(status=STATUS, cache_stats=STATS)["memory"][0] == "ok"
    level, text, fix = found(status=STATUS, cache_stats={**STATS, "capacity_bytes": 2**33})[
        "memory"
    ]
    assert level == "wrong"
    assert "8.0 GiB" in text
    assert fix.startswith("mlxctl cache resize --capacity")


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({"rejections_oversized": 3, "inserts": 0}, "wrong"),
        ({"rejections_oversized": 3}, "note"),
        ({"capacity_bytes": 1000}, "wrong"),
    ],
)
def test_a_budget_below_an_entry(found, change, level):
    told = found(status=STATUS, cache_stats={**STATS, **change})["kv budget"]
    assert told[0] == level
    assert "mlxctl cache resize --capacity" in told[2]


def test_a_store_that_is_off_is_slow(found):
    assert found(status=STATUS, cache_stats={**STATS, "enabled": False})["kv store"][0] == "slow"


def test_a_clock_that_was_set(found):
    assert found(status=STATUS, cache_stats=STATS)["clock"][0] == "ok"
    assert found(now=2e9 + 3610, status=STATUS, cache_stats=STATS)["clock"][0] == "note"
    assert found(now=1000.0)["clock"][0] == "wrong"


def test_a_socket_that_a_dead_daemon_left(found, tmp_path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "admin.sock"))
    level, text, _ = found()["socket"]
    assert level == "note"
    assert "dead daemon" in text


def test_a_bad_settings_file_is_told_with_all_its_errors(found, tmp_path):
    file = tmp_path / ".config" / "mlxceld" / "mlxceld.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("port: high\nmax_quue: 1\n")
    level, text, _ = found()["settings"]
    assert level == "wrong"
    assert "port" in text
    assert "max_quue" in text


def test_an_agent_that_is_kept_to_the_slow_cores(found, tmp_path):
    from mlxctl.managers import manager_of

    file = manager_of("launchd").file
    file.parent.mkdir(parents=True)
    plist = '<plist version="1.0"><dict><key>ProcessType</key><string>{}</string></dict></plist>'
    file.write_text(plist.format("Background"))
    assert found()["launchd"][0] == "slow"
    file.write_text(plist.format("Interactive"))
    assert found()["launchd"][0] == "ok"


def weights(file: Path, size: int) -> None:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"x" * size)


def test_the_files_of_a_model(tmp_path):
    assert any("config.json is missing" in one for one in broken_files(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert list(broken_files(tmp_path)) == [f"{tmp_path} has no *.safetensors"]
    whole = tmp_path / "model.safetensors"
    weights(whole, 100)
    assert list(broken_files(tmp_path)) == []
    whole.write_bytes(whole.read_bytes()[:-1])
    (problem,) = broken_files(tmp_path)
    assert "were expected" in problem
    whole.write_bytes(b"\xff" * 20)
    (problem,) = broken_files(tmp_path)
    assert "cut short" in problem
    weights(whole, 100)
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (problem,) = broken_files(tmp_path)
    assert "model-2.safetensors is missing" in problem


def test_the_doctors_exit_code_is_that_of_the_worst(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    ctl = Ctl(options={"socket": tmp_path / "none"})
    assert run(["doctor"], ctl) == 1
    assert "no daemon is running" in capsys.readouterr().out
