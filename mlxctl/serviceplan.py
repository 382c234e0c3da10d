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
    serve_args, drain = _checked(serve_args)
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


def _checked(serve_args: Sequence[str]) -> tuple[Sequence[str], float]:
    """The options as the daemon can take them from any folder, and its drain limit in seconds.

    Raises click.UsageError for options that it would not take: a manager would start it again and
    again.
    """
    from mlxceld.config import ConfigFileError
    from mlxceld.config.commandline import check_arguments

    # The service does not run in this shell's environment, except for where its files are.
    environ = {name: os.environ[name] for name in _PLACES if name in os.environ}
    try:
        arguments, resolved = check_arguments(serve_args, environ=environ, folder=Path.cwd())
    except ConfigFileError as error:
        raise CtlError(
            "bad_config",
            f"the daemon would not start: {error}",
            ExitCode.REFUSED,
            hint="after the correction, try: mlxceld check-config",
        ) from error
    except click.UsageError as error:
        raise click.UsageError(
            f"mlxceld serve would not start: {error.format_message()}"
        ) from error
    return arguments, resolved.settings.drain_timeout
