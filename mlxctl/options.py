"""The global options, accepted before the command and after it alike."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from mlxctl.context import DEFAULT_TIMEOUT, Ctl
from mlxctl.output import FORMATS
from mlxctl.params import DURATION


class GlobalOption(click.Option):
    """An option of the whole run, listed apart in the help."""


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Keep a global option on the run's context; what stands nearest to the command wins."""
    ctl = ctx.ensure_object(Ctl)
    assert param.name is not None
    if value is not None:
        ctl.options[param.name] = value


def _option(*names: str, env: str | None, **attributes: Any) -> Callable[[bool], GlobalOption]:
    def make(root: bool) -> GlobalOption:
        # Only the outermost reads the environment, or the innermost's would beat a flag.
        return GlobalOption(
            list(names),
            envvar=env if root else None,
            show_envvar=root,
            expose_value=False,
            callback=_remember,
            **attributes,
        )

    return make


_GLOBAL = (
    _option(
        "--socket",
        env="MLXCTL_SOCKET",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="Admin socket of the daemon. Default: the one of this user's daemon.",
    ),
    _option("--url", env="MLXCTL_URL", metavar="URL", help="Admin API over TCP instead."),
    _option(
        "--token-file",
        env="MLXCTL_TOKEN_FILE",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="File with the bearer token for --url.",
    ),
    _option(
        "-o",
        "--output",
        env="MLXCTL_OUTPUT",
        type=click.Choice(FORMATS),
        help="How to print. Default: table.",
    ),
    _option(
        "--no-color",
        env=None,
        is_flag=True,
        default=None,
        help="Print without colour, also on a terminal.",
    ),
    _option(
        "--timeout",
        env=None,
        type=DURATION,
        metavar="S",
        help=f"Limit of each request to the daemon. Default: {DEFAULT_TIMEOUT:g}s.",
    ),
)


class _WithGlobals(click.Command):
    """A command that takes the global options too, unless it has its own of that name."""

    root = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        taken = {name for param in self.params for name in param.opts}
        made = [make(self.root) for make in _GLOBAL]
        self.params += [option for option in made if not taken & set(option.opts)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the command's own options first, then those of every command."""
        own: list[tuple[str, str]] = []
        shared: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                (shared if isinstance(param, GlobalOption) else own).append(record)
        for title, records in (("Options", own), ("Global options", shared)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class CtlCommand(_WithGlobals):
    """A command of mlxctl."""


class CtlGroup(_WithGlobals, click.Group):
    """A group of commands of mlxctl."""

    command_class = CtlCommand
    group_class: type[click.Group] | type[type] | None = type

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options, then the commands."""
        _WithGlobals.format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)


class RootGroup(CtlGroup):
    """mlxctl itself, whose global options read the environment.

    ``elsewhere`` names commands with the module that has each under its name; a module is loaded
    when its command is wanted, since all together take longer than one command's work.
    """

    root = True
    group_class = CtlGroup

    def __init__(
        self, *args: Any, elsewhere: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._elsewhere = dict(elsewhere or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, those not loaded included."""
        return sorted({*self.commands, *self._elsewhere})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, loaded by now; None if there is none."""
        if cmd_name not in self.commands and cmd_name in self._elsewhere:
            module = importlib.import_module(self._elsewhere[cmd_name])
            self.add_command(getattr(module, cmd_name))
        return super().get_command(ctx, cmd_name)
