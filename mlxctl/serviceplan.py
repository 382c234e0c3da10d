"""Which service file is meant: the program, its options, and where a manager looks for it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mlxctl.context import Ctl
from mlxctl.errors import CtlError, ExitCode
from mlxctl.params import DURATION

_PLACES = ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")


def manager_tool(manager: str) -> str:
    """The command of a manager."""
    return {"launchd": "launchctl", "systemd": "systemctl"}[manager]


def service_file(
    manager: str, program: Path | None, serve_args: Sequence[str], *, system: bool
) -> str:
    """The text of the service file; raises click.UsageError for what it cannot hold."""
    from mlxctl import servicefiles

    path = (program or _find_program()).expanduser().absolute()
    drain = _drain_timeout(serve_args)
    try:
        if manager == "launchd":
            make = servicefiles.launch_daemon_plist if system else servicefiles.launchd_plist
            return make(path, serve_args, home=Path.home(), drain_timeout=drain).decode()
        if system:
            return servicefiles.systemd_system_unit(str(path), serve_args, drain_timeout=drain)
        return servicefiles.systemd_unit(str(path), serve_args, drain_timeout=drain)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def print_file(ctl: Ctl, manager: str, text: str, *, system: bool) -> None:
    """Show the file, and say what is to be done with it."""
    place, commands = _place(manager, system=system)
    if ctl.output.form == "table":
        click.echo(text, nl=False)
        ctl.output.message(f"Save this as {place}, and run: {commands}")
    else:
        answer: dict[str, Any] = {"manager": manager, "path": place, "content": text}
        ctl.output.show(answer, lambda: "")


def _place(manager: str, *, system: bool) -> tuple[str, str]:
    """Where a manager looks for the file, and what makes it do so."""
    from mlxctl.servicefiles import LABEL, UNIT

    if manager == "launchd":
        if system:
            path = f"/Library/LaunchDaemons/{LABEL}.plist"
            return path, f"sudo launchctl bootstrap system {path}"
        path = f"~/Library/LaunchAgents/{LABEL}.plist"
        return path, f"launchctl bootstrap gui/$(id -u) {path}"
    if system:
        return (
            f"/etc/systemd/system/{UNIT}",
            f"sudo systemctl daemon-reload && sudo systemctl enable --now {UNIT}",
        )
    return (
        f"~/.config/systemd/user/{UNIT}",
        f"systemctl --user daemon-reload && systemctl --user enable --now {UNIT}",
    )


def _find_program() -> Path:
    beside = Path(sys.argv[0]).absolute().parent / "mlxceld"
    if beside.is_file():
        return beside
    # Not resolved: in a virtual environment the interpreter is a link out of it.
    beside = Path(sys.executable).parent / "mlxceld"
    if beside.is_file():
        return beside
    found = shutil.which("mlxceld")
    if found is None:
        raise CtlError(
            "no_program",
            "mlxceld is neither beside mlxctl nor on the PATH",
            ExitCode.REFUSED,
            hint="say where it is: mlxctl service install --program PATH",
        )
    return Path(found)


def _drain_timeout(serve_args: Sequence[str]) -> float:
    """The drain limit, in seconds, that the daemon will run with: from its flags or its file."""
    from mlxceld.config import ConfigFileError, resolve

    given: dict[str, str] = {}
    for word, after in zip(serve_args, [*serve_args[1:], ""], strict=False):
        flag, equals, value = word.partition("=")
        given[flag] = value if equals else after
    if "--drain-timeout" in given:
        return DURATION.convert(given["--drain-timeout"], None, None)
    # The service does not run in this shell's environment, except for where its files are.
    environ = {name: os.environ[name] for name in _PLACES if name in os.environ}
    file = Path(given["--config"]).expanduser() if "--config" in given else None
    try:
        return resolve({}, environ=environ, config_file=file).settings.drain_timeout
    except ConfigFileError as error:
        raise CtlError(
            "bad_config",
            f"the daemon would not start: {error}",
            ExitCode.REFUSED,
            hint="after the correction, try: mlxceld check-config",
        ) from error
