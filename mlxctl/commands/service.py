"""``mlxctl service``."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mlxctl.context import Ctl, pass_ctl
from mlxctl.errors import CtlError, ExitCode
from mlxctl.options import CtlGroup
from mlxctl.params import DURATION

MANAGERS = ("launchd", "systemd")

_PLACES = ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")


@click.group(cls=CtlGroup)
def service() -> None:
    """Run the daemon under launchd or systemd."""


@service.command()
@click.option("--print", "printed", is_flag=True, help="Show the file and do nothing.")
@click.option(
    "--manager",
    type=click.Choice(MANAGERS),
    help="Whose file. Default: launchd on macOS, systemd elsewhere.",
)
@click.option(
    "--program",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The mlxceld to run. Default: the one installed beside mlxctl.",
)
@click.argument("serve_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- SERVE_OPTIONS]")
@pass_ctl
def install(
    ctl: Ctl,
    printed: bool,
    manager: str | None,
    program: Path | None,
    serve_args: tuple[str, ...],
) -> None:
    """Print the service file for launchd or systemd.

    Options after -- are given to mlxceld serve, as in: service install --print -- --model demo
    """
    from mlxctl import servicefiles

    manager = manager or ("launchd" if sys.platform == "darwin" else "systemd")
    place, commands = _place(manager)
    if not printed:
        raise click.UsageError(
            "give --print, save what it prints as " + place + ", and run: " + commands
        )
    path = (program or _find_program()).expanduser().absolute()
    drain = _drain_timeout(serve_args)
    try:
        if manager == "launchd":
            text = servicefiles.launchd_plist(
                path, serve_args, home=Path.home(), drain_timeout=drain
            ).decode()
        else:
            text = servicefiles.systemd_unit(str(path), serve_args, drain_timeout=drain)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if ctl.output.form == "table":
        click.echo(text, nl=False)
        ctl.output.message(f"Save this as {place}, and run: {commands}")
    else:
        answer: dict[str, Any] = {"manager": manager, "path": place, "content": text}
        ctl.output.show(answer, lambda: "")


def _place(manager: str) -> tuple[str, str]:
    """Where a manager looks for the file, and what makes it do so."""
    from mlxctl.servicefiles import LABEL, UNIT

    if manager == "launchd":
        path = f"~/Library/LaunchAgents/{LABEL}.plist"
        return path, f"launchctl bootstrap gui/$(id -u) {path}"
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
            hint="say where it is: mlxctl service install --print --program PATH",
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
