"""The service verbs: through a launchctl that only remembers, and against systemd's absence."""

from __future__ import annotations

import json
import os
import plistlib
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from fake_launchctl import put_on_path
from mlxctl import managers
from mlxctl.context import Ctl
from mlxctl.main import run
from mlxctl.servicefiles import LABEL, UNIT

DOMAIN = f"gui/{os.getuid()}"
TARGET = f"{DOMAIN}/{LABEL}"


class Ready:
    """A daemon that is loading at first, and then ready."""

    def __init__(self) -> None:
        self.asked = 0

    def get(self, path: str) -> dict[str, Any]:
        self.asked += 1
        return {"ready": self.asked > 1, "state": "loading", "detail": ""}


class Mac:
    """A home with a launchctl, and mlxctl in it."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        self.home = home
        self._capsys = capsys
        self._state = put_on_path(home / "bin")
        monkeypatch.setenv("PATH", f"{home / 'bin'}:{os.environ['PATH']}")
        monkeypatch.setenv("HOME", str(home))
        for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "STATE_DIRECTORY"):
            monkeypatch.delenv(name, raising=False)
        self.program = home / "bin" / "mlxceld"
        self.program.write_text("#!/bin/sh\n")
        self.plist = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"

    def __call__(self, *words: str) -> tuple[int, str, str]:
        ctl = Ctl(sleep=lambda _: None)
        ctl.__dict__["client"] = Ready()
        verb, *rest = words
        code = run(["service", verb, "--manager", "launchd", *rest], ctl)
        captured = self._capsys.readouterr()
        return int(code), captured.out, captured.err

    @property
    def calls(self) -> list[list[str]]:
        """What launchctl was asked, but for looking."""
        asked = json.loads(self._state.read_text())["calls"] if self._state.exists() else []
        return [words for words in asked if words[0] != "print"]

    def refuse(self, verb: str, said: str) -> None:
        self.arrange(refuse={verb: said})

    def arrange(self, **values: Any) -> None:
        """How launchctl is to behave from now on."""
        known = json.loads(self._state.read_text()) if self._state.exists() else {}
        self._state.write_text(json.dumps({**known, **values}))


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Mac:
    return Mac(tmp_path, monkeypatch, capsys)


def test_install_writes_the_agent_has_it_loaded_and_waits_until_it_is_ready(mac):
    code, out, err = mac("install", "--program", str(mac.program), "--", "--model", "demo")
    assert code == 0, err
    written = plistlib.loads(mac.plist.read_bytes())
    assert written["ProgramArguments"] == [str(mac.program), "serve", "--model", "demo"]
    assert stat.S_IMODE(mac.plist.stat().st_mode) == 0o644
    assert mac.calls == [["enable", TARGET], ["bootstrap", DOMAIN, str(mac.plist)]]
    assert "running" in out
    assert "4242" in out


def test_options_that_serve_would_not_take_are_refused_before_anything_is_written(mac):
    code, _, err = mac("install", "--program", str(mac.program), "--", "--modle", "x")
    assert code == 2
    assert "--modle" in err
    assert "--model" in err
    assert not mac.plist.exists()
    assert mac.calls == []


def test_relative_paths_are_kept_as_absolute_ones(mac, monkeypatch):
    monkeypatch.chdir(mac.home)
    code, _, err = mac("install", "--program", str(mac.program), "--", "--model", "./m")
    assert code == 0, err
    words = plistlib.loads(mac.plist.read_bytes())["ProgramArguments"]
    assert words[1:] == ["serve", "--model", str(mac.home / "m")]


def test_installed_again_it_is_unloaded_first(mac):
    mac("install", "--program", str(mac.program))
    code, _, err = mac("install", "--program", str(mac.program), "--", "--port", "9")
    assert code == 0, err
    assert [words[0] for words in mac.calls[2:]] == ["bootout", "enable", "bootstrap"]
    assert "--port" in plistlib.loads(mac.plist.read_bytes())["ProgramArguments"]


def test_stop_start_and_restart_leave_it_loaded(mac):
    mac("install", "--program", str(mac.program))
    code, out, _ = mac("stop")
    assert (code, mac.calls[-1]) == (0, ["kill", "SIGTERM", TARGET])
    assert "not running" in out
    assert mac("status")[0] == 3
    assert mac("start")[0] == 0
    assert mac.calls[-1] == ["kickstart", TARGET]
    assert mac("restart")[0] == 0
    # What runs is finished first; ``kickstart -k`` would kill it.
    assert mac.calls[-2:] == [["kill", "SIGTERM", TARGET], ["kickstart", TARGET]]
    assert mac("status")[0] == 0


def test_a_job_that_is_slow_to_go_is_waited_for(mac):
    mac("install", "--program", str(mac.program))
    mac.arrange(lag=7)
    code, _, err = mac("install", "--program", str(mac.program), "--", "--port", "9")
    assert code == 0, err
    assert mac("status")[0] == 0
    code, out, _ = mac("stop")
    assert code == 0
    assert "not running" in out
    assert mac("start")[0] == 0
    assert mac("uninstall", "--yes")[0] == 0
    assert mac("status")[0] == 3


def test_a_bootstrap_that_comes_too_early_is_tried_again(mac):
    mac("install", "--program", str(mac.program))
    # Taken out a moment ago: print knows it no more, and bootstrap still refuses.
    mac.arrange(loaded=False, running=False, busy=2)
    code, _, err = mac("start")
    assert code == 0, err
    assert [words[0] for words in mac.calls[-3:]] == ["bootstrap"] * 3


def test_a_bootstrap_that_stays_refused_is_told(mac, monkeypatch):
    monkeypatch.setattr(managers, "_BOOTSTRAP_SECONDS", 0.0)
    mac.arrange(busy=100)
    code, _, err = mac("install", "--program", str(mac.program))
    assert code == 1
    assert "Input/output error" in err


def test_uninstall_asks_unloads_and_removes_and_is_no_failure_twice(mac):
    mac("install", "--program", str(mac.program))
    code, _, err = mac("uninstall")
    assert code == 2
    assert "--yes" in err
    assert mac("uninstall", "--yes")[0] == 0
    assert mac.calls[-1] == ["bootout", TARGET]
    assert not mac.plist.exists()
    code, out, _ = mac("uninstall", "--yes")
    assert code == 0
    assert "not installed" in out


@pytest.mark.parametrize("verb", ["start", "restart"])
def test_what_is_not_installed_is_not_started(mac, verb):
    code, _, err = mac(verb)
    assert code == 1
    assert "mlxctl service install" in err
    assert mac.calls == []


def test_a_refusal_of_launchctl_is_told_with_its_command(mac):
    mac.refuse("bootstrap", "Bootstrap failed: 125: Domain does not support specified action")
    code, _, err = mac("install", "--program", str(mac.program))
    assert code == 1
    assert f"launchctl bootstrap {DOMAIN}" in err
    assert "125" in err
    assert "--system" in err


def test_a_start_that_failed_for_good_is_told_by_install_and_status(mac, monkeypatch):
    from mlxceld.config import paths

    folder = paths.default_state_dir()
    folder.mkdir(parents=True)
    failure = {"at_unix": 9e9, "text": "model gone: not found", "exit_code": 1, "permanent": True}
    paths.failure_file(folder).write_text(json.dumps(failure))
    code, _, err = mac("install", "--program", str(mac.program))
    assert code == 1
    assert "the daemon does not start: model gone" in err
    mac("stop")
    code, out, _ = mac("status")
    assert code == 3
    assert "model gone" in out
    assert "not started again" in out


def test_the_log_is_the_agents_file(mac):
    found = managers.manager_of("launchd").log_command(7, follow=True)
    assert found == ["tail", "-n", "7", "-F", str(mac.home / "Library/Logs/mlxceld.log")]
    (mac.home / "Library" / "Logs").mkdir(parents=True)
    (mac.home / "Library" / "Logs" / "mlxceld.log").write_text("one\ntwo\n")
    assert mac("logs", "-n", "1")[0] == 0


def test_systemd_is_spoken_to_for_this_user(tmp_path, monkeypatch, capsys):
    log = tmp_path / "calls"
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    told = "LoadState=loaded\\nActiveState=active\\nSubState=running\\nMainPID=77\\nNRestarts=2"
    program.write_text(
        f'#!/bin/sh\necho "$*" >> {log}\ncase "$2" in show) printf "{told}\\n";; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    arguments = ["service", "install", "--manager", "systemd", "--program", sys.executable]
    assert run([*arguments, "--no-wait", "-o", "json"], Ctl()) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["pid"], answer["restarts"], answer["running"]) == (77, 2, True)
    assert (tmp_path / ".config/systemd/user" / UNIT).is_file()
    calls = log.read_text().splitlines()
    assert calls[:3] == [
        "--user daemon-reload",
        f"--user enable {UNIT}",
        f"--user --no-block restart {UNIT}",
    ]
    assert run(["service", "uninstall", "--manager", "systemd", "--yes"], Ctl()) == 0
    assert log.read_text().splitlines()[-2] == f"--user disable --now {UNIT}"


def test_without_a_manager_the_way_without_one_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run(["service", "status", "--manager", "systemd"], Ctl()) == 1
    assert "mlxceld start --detach" in capsys.readouterr().err
