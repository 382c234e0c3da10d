"""The daemon's own commands. Heavy modules are imported by the command that needs them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from mlxceld import __version__
from mlxceld.config import ConfigFileError, ResolvedSettings, effective, resolve
from mlxceld.config.folders import FolderError, private_folder
from mlxceld.config.kinds import DurationKind
from mlxceld.config.options import KindParam, SettingsCommand, resolve_from_click, settings_options
from mlxceld.config.streams import open_missing_streams

if TYPE_CHECKING:
    from mlxceld.process.report import StartReport

_STOP_MARGIN_SECONDS = 30.0
"""How much longer than the drain limit a stop is waited for."""


class _Program(click.Group):
    """The commands, with all three standard streams whoever starts them."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command."""
        open_missing_streams()
        return super().main(*args, **kwargs)


@click.group(
    cls=_Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="mlxceld", message="%(prog)s %(version)s")
def main() -> None:
    """Serve a language model in the background, with a prompt cache to see and steer.

    \b
    mlxceld serve --model demo            in the foreground, as service managers want it
    mlxceld start --detach --model demo   in the background, where there is none
    mlxctl status                         how a running daemon does

    Exit codes: 0 done, 1 failed, 2 wrong usage, 78 wrong settings.
    """


class ServeCommand(SettingsCommand):
    """``serve``, for which a service manager may have to be told that another try is no use."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Read the command line; a wrong one ends for good under a manager."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            _wrong_usage(error)


@main.command(cls=ServeCommand)
@settings_options
def serve(**params: Any) -> None:
    """Serve in the foreground until SIGTERM or Ctrl-C; SIGHUP reloads what can be."""
    from mlxceld.process.early import take_early_signals

    take_early_signals()
    reread = _rereader(params)
    try:
        resolved = _resolved(reread, serving=True)
    except click.UsageError as error:
        _wrong_usage(error)
    from mlxceld.daemon import run

    sys.exit(run(resolved, reread=reread))


@main.command(cls=SettingsCommand)
@click.option("--detach", is_flag=True, help="Go to the background; needed.")
@settings_options
def start(detach: bool, **params: Any) -> None:
    """Start in the background and return when the daemon is ready, or say why it is not.

    Its output goes to mlxceld.log in the state folder. Where launchd or systemd runs the daemon,
    use serve.
    """
    from mlxceld.process.detach import StartError, start_detached
    from mlxceld.process.manager import ManagedError, refuse_under_manager
    from mlxceld.process.pidfile import AlreadyRunningError, read_holder

    if not detach:
        raise click.UsageError("give --detach to go to the background, or use `mlxceld serve`")
    reread = _rereader(params)
    resolved = _resolved(reread)
    state_dir = resolved.settings.state_dir

    def run_daemon(report: StartReport) -> int:
        # Imported in the daemon only: what this loads must not be forked.
        from mlxceld.process.early import take_early_signals

        take_early_signals()
        from mlxceld.daemon import run

        return run(resolved, report=report, reread=reread)

    try:
        refuse_under_manager()
        private_folder(state_dir)
        holder = read_holder(state_dir)
        if holder is not None:
            raise AlreadyRunningError(state_dir, holder)
        started = start_detached(state_dir, run_daemon, progress=_say)
    except (ManagedError, AlreadyRunningError) as error:
        _fail(str(error), 1)
    except StartError as error:
        _fail(str(error), error.exit_code)
    except FolderError as error:
        _fail(f"state_dir {state_dir}: {error}", os.EX_CONFIG)
    except OSError as error:
        _fail(f"state_dir {state_dir}: cannot be used: {error.strerror or error}", os.EX_CONFIG)
    except KeyboardInterrupt:
        _fail("interrupted; the daemon was ended", 130)
    click.echo(f"mlxceld serves at {started.address} (process {started.pid})")


_state_dir_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The daemon's state folder, if not the usual one.",
)


@main.command()
@_state_dir_option
@click.option(
    "--timeout",
    type=KindParam(DurationKind()),
    metavar="DURATION",
    help="How long to wait; by default half a minute more than drain_timeout.",
)
@click.option("--force", is_flag=True, help="Kill it if it has not stopped by then.")
def stop(state_dir: Path | None, timeout: float | None, force: bool) -> None:
    """Let the daemon finish what runs, and wait until it has ended.

    That no daemon runs is no failure. Exit code 1: it still runs.
    """
    from mlxceld.process.stop import StopOutcome, stop_daemon

    settings = _settings_for(state_dir).settings
    limit = settings.drain_timeout + _STOP_MARGIN_SECONDS if timeout is None else timeout
    try:
        result = stop_daemon(settings.state_dir, timeout=limit, force=force)
    except OSError as error:
        _fail(f"the daemon cannot be stopped: {error.strerror or error}", 1)
    if result.outcome is StopOutcome.NOT_RUNNING:
        _say(f"no daemon runs with the state folder {settings.state_dir}")
    elif result.outcome is StopOutcome.STILL_RUNNING:
        _fail(
            f"{result.holder} still runs after {limit:g} s"
            + ("" if force else "; --force kills it"),
            1,
        )
    else:
        click.echo(f"{result.outcome.value}: {result.holder}")


@main.command(cls=SettingsCommand)
@settings_options
def check_config(**params: Any) -> None:
    """Show every setting with its value and source, as serve would take them, and serve nothing.

    Exit code 78: something is wrong, and all of it is named.
    """
    resolved = _resolved(_rereader(params))
    rows = effective(resolved)
    names, values = max(len(row.name) for row in rows), max(len(row.value) for row in rows)
    for row in rows:
        click.echo(f"{row.name:<{names}}  {row.value:<{min(values, 40)}}  {row.source.value}")
    for line in (*resolved.notes, *resolved.warnings):
        _say(line)
    from mlxceld.api.keys import ApiKeys, KeyFileError

    try:
        ApiKeys(resolved.settings.api_keys_file)
    except KeyFileError as error:
        _fail(f"api_keys_file: {error}", os.EX_CONFIG)
    if resolved.settings.model is None:
        _say("no model is set: serve will need --model")


@main.group()
def models() -> None:
    """Models that were imported into the state folder."""


@models.command("list")
@_state_dir_option
def list_command(state_dir: Path | None) -> None:
    """List imported models: name, size, folder."""
    from mlxceld.models.library import list_models

    for model in list_models(_settings_for(state_dir).settings.state_dir):
        click.echo(f"{model.name}\t{model.bytes / 2**20:.0f} MiB\t{model.path}")


@models.command("import")
@click.argument("path", metavar="PATH")
@_state_dir_option
def import_command(path: str, state_dir: Path | None) -> None:
    """Import a .gguf file for this machine, once, and print the folder to serve.

    PATH may also be a hub id or demo: what --model of serve takes.
    """
    from mlxceld.models import blas
    from mlxceld.models.errors import ModelError
    from mlxceld.models.locate import import_model, resolve_model
    from mlxceld.models.requirements import require_mlx

    state = _settings_for(state_dir).settings.state_dir
    try:
        private_folder(state)
    except (FolderError, OSError) as error:
        _fail(f"state_dir {state}: {getattr(error, 'strerror', None) or error}", os.EX_CONFIG)
    try:
        require_mlx()
        blas.interpose()
        folder = (
            import_model(Path(path), state_dir=state, progress=_say)
            if Path(path).is_file()
            else resolve_model(path, state_dir=state, progress=_say)
        )
    except ModelError as error:
        _fail(str(error), 1)
    click.echo(str(folder.path))


def _rereader(params: dict[str, Any]) -> Callable[[], ResolvedSettings]:
    """Resolves the settings of a command's flags, as often as wanted, wherever the process is."""
    from mlxceld.config.paths import working_folder

    # A daemon leaves this folder, and resolves them again.
    folder = working_folder()
    if params.get("config") is not None:
        params = {**params, "config": folder / params["config"].expanduser()}
    return lambda: resolve_from_click(params, folder=folder)


def _resolved(reread: Callable[[], ResolvedSettings], *, serving: bool = False) -> ResolvedSettings:
    try:
        return reread()
    except ConfigFileError as error:
        for line in error.errors:
            click.echo(str(line), err=True)
        code = error.exit_code
        if serving:
            from mlxceld.config.paths import default_state_dir
            from mlxceld.process.permanent import failed_start_exit_code

            # Which folder the settings name cannot be told; mlxctl looks into this one.
            code = failed_start_exit_code(str(error), code, default_state_dir(), permanent=True)
        sys.exit(code)


def _wrong_usage(error: click.UsageError) -> NoReturn:
    """Say what is wrong, and exit as this process's manager has to hear it, if there is one."""
    from mlxceld.config.paths import default_state_dir
    from mlxceld.process.permanent import failed_start_exit_code

    error.show()
    text = f"mlxceld serve: {error.format_message()}"
    sys.exit(failed_start_exit_code(text, error.exit_code, default_state_dir(), permanent=True))


def _settings_for(state_dir: Path | None) -> ResolvedSettings:
    """The settings of commands that only need to know the state folder."""
    flags = {} if state_dir is None else {"state_dir": state_dir}
    try:
        return resolve(flags)
    except ConfigFileError as error:
        # A daemon that was started before the file broke must still be stoppable.
        _say(f"{error.errors[0]} (the file is passed over)")
        return resolve(flags, search=False)


def _say(line: str) -> None:
    click.echo(line, err=True)


def _fail(text: str, code: int) -> NoReturn:
    click.echo(f"mlxceld: {text}", err=True)
    sys.exit(code)
