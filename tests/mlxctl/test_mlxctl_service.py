"""The service files: what the managers read in them, and that the templates are the same."""

from __future__ import annotations

import configparser
import os
import plistlib
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from mlxctl import servicefiles
from mlxctl.main import run

ROOT = Path(__file__).parents[2]
PROGRAM = Path("/opt/with space/b&é<>'\"/mlxceld")


def unit_values(text: str) -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read_string(text)
    return parser["Service"]


def test_the_agent_runs_in_the_foreground_comes_back_after_a_crash_and_is_not_slowed():
    plist = plistlib.loads(
        servicefiles.launchd_plist(PROGRAM, ["--port", "9"], home=Path("/h"), drain_timeout=90)
    )
    assert plist["ProgramArguments"] == [str(PROGRAM), "serve", "--port", "9"]
    assert plist["KeepAlive"] == {"SuccessfulExit": False}
    assert plist["ProcessType"] == "Interactive"
    assert (plist["ThrottleInterval"], plist["ExitTimeOut"]) == (30, 120)
    assert plist["Umask"] == 63
    assert plist["StandardErrorPath"] == "/h/Library/Logs/mlxceld.log"
    assert "EnvironmentVariables" not in plist


def test_the_unit_is_notified_watched_and_not_restarted_on_a_bad_configuration():
    service = unit_values(servicefiles.systemd_unit("/bin/m", [], drain_timeout=30))
    assert service["Type"] == "notify"
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == "2 78"
    assert int(service["WatchdogSec"]) > 0
    assert int(service["TimeoutStopSec"]) > 30
    assert service["UMask"] == "0077"
    assert service["ExecStart"] == "/bin/m serve"


def test_words_of_the_units_command_are_quoted_as_systemd_reads_them():
    arguments = ["--model", "a b%c$d", 'q"uo\\te', "", "plain/x"]
    line = unit_values(servicefiles.systemd_unit(str(PROGRAM), arguments, drain_timeout=30))
    words = shlex.split(line["ExecStart"])
    unescaped = [word.replace("%%", "%").replace("$$", "$") for word in words]
    assert unescaped == [str(PROGRAM), "serve", *arguments]
    assert "%%" in line["ExecStart"]
    assert "$$" in line["ExecStart"]


def test_a_control_character_is_refused_by_both():
    with pytest.raises(ValueError, match="control character"):
        servicefiles.systemd_unit("/bin/m", ["a\nExecStop=/bin/evil"], drain_timeout=30)
    assert run(["service", "install", "--print", "--manager", "launchd", "--", "a\x01"]) == 2


def test_the_plist_template_is_what_is_printed():
    template = (ROOT / "launchd" / f"{servicefiles.LABEL}.plist").read_bytes()
    assert plistlib.loads(template) == plistlib.loads(
        servicefiles.launchd_plist(
            Path("/usr/local/bin/mlxceld"),
            ["--model", "demo"],
            home=Path("/Users/you"),
            drain_timeout=30,
        )
    )


def test_the_unit_template_is_what_is_printed():
    template = (ROOT / "systemd" / servicefiles.UNIT).read_text()
    lines = template.splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    assert "".join(lines[first:]) == servicefiles.systemd_unit(
        "%h/.local/bin/mlxceld", ["--model", "demo"], drain_timeout=30
    )


def test_the_templates_of_the_whole_machine_are_what_is_printed():
    template = (ROOT / "systemd" / "mlxceld-system.service").read_text()
    lines = template.splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    assert "".join(lines[first:]) == servicefiles.systemd_system_unit(
        "/usr/local/bin/mlxceld", ["--model", "demo"], drain_timeout=30
    )
    plist = (ROOT / "launchd" / f"{servicefiles.LABEL}.system.plist").read_bytes()
    assert plistlib.loads(plist) == plistlib.loads(
        servicefiles.launch_daemon_plist(
            Path("/usr/local/bin/mlxceld"),
            ["--model", "demo"],
            home=Path("/Users/you"),
            drain_timeout=30,
        )
    )


def test_the_rotated_log_is_the_agents():
    lines = (ROOT / "etc" / "newsyslog.d" / "mlxceld.conf").read_text().splitlines()
    (fields,) = [line.split() for line in lines if line and not line.startswith("#")]
    agent = servicefiles.launchd_plist(Path("/m"), [], home=Path("/Users/you"), drain_timeout=1)
    assert fields[0] == plistlib.loads(agent)["StandardErrorPath"]
    assert fields[1:3] == ["you:staff", "600"]
    assert fields[-1] == "N"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "bin with space" / "mlxceld"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_print_shows_the_file_and_says_where_it_goes(program, capsys):
    arguments = ["service", "install", "--print", "--program", str(program)]
    assert run([*arguments, "--manager", "systemd", "--", "--model", "demo"]) == 0
    captured = capsys.readouterr()
    words = shlex.split(unit_values(captured.out)["ExecStart"])
    assert words == [str(program), "serve", "--model", "demo"]
    assert "systemctl --user" in captured.err
    assert run([*arguments, "--manager", "launchd"]) == 0
    captured = capsys.readouterr()
    assert plistlib.loads(captured.out.encode())["ProgramArguments"][0] == str(program)
    assert "launchctl bootstrap" in captured.err


def test_the_managers_grace_follows_the_drain_limit_that_is_served_with(program, capsys):
    arguments = ["service", "install", "--print", "--program", str(program), "--manager"]
    assert run([*arguments, "systemd", "--", "--drain-timeout", "2m"]) == 0
    assert unit_values(capsys.readouterr().out)["TimeoutStopSec"] == "150"
    assert run([*arguments, "launchd", "--", "--drain-timeout=45"]) == 0
    assert plistlib.loads(capsys.readouterr().out.encode())["ExitTimeOut"] == 75


def test_the_managers_grace_follows_the_settings_file_too(program, tmp_path, monkeypatch, capsys):
    file = tmp_path / "mine.yaml"
    file.write_text("drain_timeout: 5m\n")
    monkeypatch.setenv("MLXCEL_DRAIN_TIMEOUT", "10")  # the service will not see this
    arguments = ["service", "install", "--print", "--program", str(program), "--manager"]
    assert run([*arguments, "systemd", "--", "--config", str(file)]) == 0
    assert unit_values(capsys.readouterr().out)["TimeoutStopSec"] == "330"
    file.write_text("drain_timeout: soon\n")
    assert run([*arguments, "systemd", "--", "--config", str(file)]) == 1
    assert "drain_timeout" in capsys.readouterr().err


def test_what_is_of_the_whole_machine_is_only_shown(program, capsys):
    arguments = ["service", "install", "--system", "--program", str(program), "--manager"]
    assert run([*arguments, "systemd"]) == 2
    assert "--print" in capsys.readouterr().err
    assert run([*arguments, "systemd", "--print"]) == 0
    captured = capsys.readouterr()
    service = unit_values(captured.out)
    assert service["StateDirectory"] == "mlxceld"
    assert (service["DynamicUser"], service["ProtectSystem"]) == ("yes", "strict")
    assert service["RestartPreventExitStatus"] == "2 78"
    assert "MemoryDenyWriteExecute" not in service
    assert "sudo systemctl" in captured.err
    assert run([*arguments, "launchd", "--print"]) == 0
    plist = plistlib.loads(capsys.readouterr().out.encode())
    assert plist["UserName"] == Path.home().name
    assert "LimitLoadToSessionType" not in plist
    assert plist["ProcessType"] == "Interactive"


@pytest.mark.parametrize("system", [False, True])
def test_systemd_accepts_the_unit(program, tmp_path, system):
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / servicefiles.UNIT
    make = servicefiles.systemd_system_unit if system else servicefiles.systemd_unit
    unit.write_text(make(str(program), ["--port", "9"], drain_timeout=30))
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    done = subprocess.run(
        [tool, *([] if system else ["--user"]), "verify", str(unit)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
