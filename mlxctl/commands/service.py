"""``mlxctl service``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlxctl import managers, tables
from mlxctl.context import Ctl, pass_ctl
from mlxctl.errors import CtlError, ExitCode
from mlxctl.options import CtlGroup
from mlxctl.params import DURATION
from mlxctl.serviceplan import manager_tool, print_file, service_file

if TYPE_CHECKING:
    from rich.table import Table

_POLL_SECONDS = 0.5

_manager_option = click.option(
    "--manager",
    type=click.Choice(managers.NAMES),
    default=managers.default_manager,
    show_default="launchd on macOS, systemd elsewhere",
    help="Which service manager.",
)


def _wait_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--timeout",
        type=DURATION,
        default="10m",
        show_default=True,
        metavar="S",
        help="How long to wait before giving up with exit code 6.",
    )(command)
    return click.option(
        "--wait/--no-wait",
        default=True,
        show_default=True,
        help="Return when the daemon is ready, or at once.",
    )(command)


@click.group(cls=CtlGroup)
def service() -> None:
    """Run the daemon under launchd or systemd.

    \b
    mlxctl service install -- --model demo
    mlxctl service status
    mlxctl service logs --follow
    """


@service.command()
@click.option("--print", "printed", is_flag=True, help="Show the file and do nothing.")
@click.option(
    "--system",
    is_flag=True,
    help="With --print: the file for the whole machine, without a login, to be put in place"
    " by hand.",
)
@_manager_option
@click.option(
    "--program",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The mlxceld to run. Default: the one installed beside mlxctl.",
)
@_wait_options
@click.argument("serve_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- SERVE_OPTIONS]")
@pass_ctl
def install(
    ctl: Ctl,
    printed: bool,
    system: bool,
    manager: str,
    program: Path | None,
    wait: bool,
    timeout: float,
    serve_args: tuple[str, ...],
) -> None:
    """Let the daemon run for you from login on, and start it.

    Writes the service file, has the manager load it, and waits until the daemon is ready. One that
    is installed is replaced. Options after -- are given to mlxceld serve.

    \b
    mlxctl service install -- --model demo
    mlxctl service install --print -- --config ~/mlxceld.yaml
    mlxctl service install --print --system > mlxceld.service
    """
    if system and not printed:
        raise click.UsageError(
            "--system needs --print: what is of the whole machine is put in place by its"
            " administrator"
        )
    text = service_file(manager, program, serve_args, system=system)
    if printed:
        print_file(ctl, manager, text, system=system)
        return
    if manager != managers.default_manager() and shutil.which(manager_tool(manager)) is None:
        raise click.UsageError(f"--manager {manager}: not on this machine; --print shows its file")
    chosen = _chosen(ctl, manager)
    chosen.install(text.encode())
    ctl.output.message(f"Installed {chosen.file}.")
    _until_ready(ctl, chosen, wait=wait, timeout=timeout)


@service.command()
@_manager_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_ctl
def uninstall(ctl: Ctl, manager: str, yes: bool) -> None:
    """Stop the daemon and remove its service file.

    The state folder with its models stays. That nothing is installed is no failure.

    \b
    mlxctl service uninstall --yes
    """
    chosen = _chosen(ctl, manager)
    if chosen.file.is_file():
        ctl.confirm("Stop the daemon and remove its service file?", yes=yes)
    removed = chosen.uninstall()
    answer = {"manager": manager, "file": str(chosen.file), "removed": removed}
    ctl.output.show(
        answer,
        lambda: tables.key_values([("removed" if removed else "not installed", str(chosen.file))]),
    )


@service.command()
@_manager_option
@_wait_options
@pass_ctl
def start(ctl: Ctl, manager: str, wait: bool, timeout: float) -> None:
    """Start the daemon that is installed, and wait until it is ready.

    \b
    mlxctl service start
    """
    chosen = _chosen(ctl, manager)
    chosen.start()
    _until_ready(ctl, chosen, wait=wait, timeout=timeout)


@service.command()
@_manager_option
@pass_ctl
def stop(ctl: Ctl, manager: str) -> None:
    """Let the daemon finish what runs, and stop it.

    It stays installed, and is started again at the next login.

    \b
    mlxctl service stop
    """
    chosen = _chosen(ctl, manager)
    chosen.stop()
    _show_status(ctl, chosen)


@service.command()
@_manager_option
@_wait_options
@pass_ctl
def restart(ctl: Ctl, manager: str, wait: bool, timeout: float) -> None:
    """Stop the daemon if it runs, start it, and wait until it is ready.

    \b
    mlxctl service restart
    """
    chosen = _chosen(ctl, manager)
    chosen.restart()
    _until_ready(ctl, chosen, wait=wait, timeout=timeout)


@service.command()
@_manager_option
@pass_ctl
def status(ctl: Ctl, manager: str) -> int | None:
    """Show what the service manager knows of the daemon.

    With what a start that failed has left, where there was one. Exit code 3: it does not run.

    \b
    mlxctl service status
    """
    running = _show_status(ctl, _chosen(ctl, manager))
    return None if running else ExitCode.UNREACHABLE


@service.command()
@_manager_option
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0, 1_000_000),
    default=50,
    show_default=True,
    metavar="N",
    help="How many of the last lines to show first.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines until Ctrl-C.")
@pass_ctl
def logs(ctl: Ctl, manager: str, lines: int, follow: bool) -> None:
    """Show the daemon's log.

    journald's for systemd, the file under ~/Library/Logs for launchd; as it was written, whatever
    -o says.

    \b
    mlxctl service logs -n 200
    mlxctl service logs --follow
    """
    import subprocess

    words = _chosen(ctl, manager).log_command(lines, follow=follow)
    if shutil.which(words[0]) is None:
        raise CtlError("no_manager", f"{words[0]} is not on this machine", ExitCode.REFUSED)
    done = subprocess.run(words, check=False)  # noqa: S603 - our own words, and no shell
    if done.returncode:
        raise CtlError(
            "logs",
            f"`{' '.join(words)}` ended with code {done.returncode}",
            ExitCode.REFUSED,
            hint="whether it is installed is shown by: mlxctl service status",
        )


def _chosen(ctl: Ctl, manager: str) -> managers.Manager:
    return managers.manager_of(manager, waiting=managers.Waiting(ctl.sleep, ctl.clock))


def _until_ready(ctl: Ctl, chosen: managers.Manager, *, wait: bool, timeout: float) -> None:
    """Wait for a daemon that was just started, unless that is not wanted, and show how it does."""
    if not wait:
        _show_status(ctl, chosen)
        return
    began, deadline = ctl.wall(), ctl.clock() + timeout
    last = "nothing was heard of it"
    for _ in ctl.ticks(_POLL_SECONDS):
        failure = last_failure()
        if failure is not None and failure["at_unix"] >= began - 1:
            raise CtlError(
                "failed",
                f"the daemon does not start: {failure['text']}",
                ExitCode.REFUSED,
                hint="after the correction, run: mlxctl service restart",
            )
        try:
            answer = ctl.client.get("status")
        except CtlError as error:
            if error.exit_code not in (ExitCode.UNREACHABLE, ExitCode.TIMED_OUT):
                raise
            last = error.message
        else:
            if answer["ready"]:
                _show_status(ctl, chosen)
                return
            last = f"it is {answer['state']} {answer['detail']}".rstrip()
        if ctl.clock() >= deadline:
            raise CtlError(
                "timed_out",
                f"the daemon was not ready within {tables.duration_text(timeout)}: {last}",
                ExitCode.TIMED_OUT,
                hint="its log is shown by: mlxctl service logs",
            )


def last_failure() -> dict[str, Any] | None:
    """What the last start under a manager left if it failed; None if it went well."""
    from mlxceld.config import paths

    try:
        read = json.loads(paths.failure_file(paths.default_state_dir()).read_text("utf-8"))
        return {
            "at_unix": float(read["at_unix"]),
            "text": str(read["text"]),
            "exit_code": int(read["exit_code"]),
            "permanent": bool(read["permanent"]),
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _show_status(ctl: Ctl, chosen: managers.Manager) -> bool:
    """Show what the manager knows; whether the daemon runs."""
    found = chosen.status()
    failure = None if found.running else last_failure()
    answer = {**asdict(found), "last_failure": failure}
    ctl.output.show(answer, lambda: _status_table(answer))
    if not found.installed and ctl.output.form == "table":
        ctl.output.message("Install it with: mlxctl service install -- --model demo")
    return found.running


def _status_table(answer: dict[str, Any]) -> Table:
    rows = [
        ("manager", answer["manager"]),
        ("file", answer["file"] + ("" if answer["installed"] else " (not installed)")),
        ("state", answer["state"]),
    ]
    if answer["pid"]:
        rows.append(("process", str(answer["pid"])))
    if answer["restarts"]:
        rows.append(("restarts", tables.count_text(answer["restarts"])))
    if answer["last_exit"] and not answer["running"]:
        rows.append(("last exit", answer["last_exit"]))
    failure = answer["last_failure"]
    if failure is not None:
        note = "; not started again until that is mended" if failure["permanent"] else ""
        rows.append(("last failure", failure["text"] + note))
    return tables.key_values(rows)
