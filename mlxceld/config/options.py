"""The settings as click options: ``serve``, ``start`` and ``check-config`` take the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from mlxceld.config.resolve import CONFIG_ENV, ResolvedSettings, resolve
from mlxceld.config.table import SETTINGS, Setting

F = TypeVar("F", bound=Callable[..., Any])


class KindParam(click.ParamType[Any]):
    """A setting's kind as a click type: a bad value is a usage error."""

    def __init__(self, row: Setting) -> None:
        self.name = row.kind.metavar.lower()
        self._kind = row.kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the flag's text."""
        if not isinstance(value, str):
            return value
        try:
            return self._kind.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class SettingOption(click.Option):
    """An option of the table; its section groups it in the help."""

    section: str = ""


class SettingsCommand(click.Command):
    """A command whose help groups the settings by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, then a section a group of settings."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                section = param.section if isinstance(param, SettingOption) else "Options"
                sections.setdefault(section, []).append(record)
        for section in ["Options", *(s for s in sections if s != "Options")]:
            if rows := sections.get(section):
                with formatter.section(section):
                    formatter.write_dl(rows)


def settings_options(command: F) -> F:
    """Give a click command every setting as an option, and ``--config``."""
    for row in reversed(_sorted_rows()):
        for extra in row.flags[1:]:
            command = _optional_value(row, extra)(command)
        command = _option(row)(command)
    return click.option(
        "--config",
        "config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"Settings file in YAML; by default the first that exists of the platform's places."
        f" [env: {CONFIG_ENV}]",
    )(command)


def resolve_from_click(
    params: Mapping[str, Any], *, environ: Mapping[str, str] | None = None
) -> ResolvedSettings:
    """Resolve the settings from a command's keyword arguments; others than ours are passed over.

    Raises ConfigFileError.
    """
    flags: dict[str, Any] = {}
    for name, row in SETTINGS.items():
        for key in (_key(row), *(_key(row, extra) for extra in row.flags[1:])):
            value = params.get(key)
            if value is not None and value != ():
                flags[name] = _joined(value) if row.kind.many else value
                break
    return resolve(flags, environ=environ, config_file=params.get("config"))


def _sorted_rows() -> list[Setting]:
    order = list(dict.fromkeys(row.spec.section for row in SETTINGS.values()))
    return sorted(SETTINGS.values(), key=lambda row: order.index(row.spec.section))


def _key(row: Setting, flag: str = "") -> str:
    name = row.name.replace(".", "__")
    return name + ("__" + flag.lstrip("-").replace("-", "_") if flag else "")


def _option(row: Setting) -> Callable[[F], F]:
    names = [row.flags[0]] if row.is_switch else row.flags[0].split("/")
    notes = f"[env: {', '.join(row.env)}; default: {row.default_text()}]"
    options: dict[str, Any] = {"default": None, "help": f"{row.spec.help} {notes}"}
    if not row.is_switch:
        options |= {
            "type": KindParam(row),
            "metavar": row.kind.metavar,
            "multiple": row.kind.many,
        }
        if row.kind.many:
            options["default"] = ()
    return _with_section(row, click.option(_key(row), *names, cls=SettingOption, **options))


def _optional_value(row: Setting, flag: str) -> Callable[[F], F]:
    """The alias of a switch that takes an optional value: ``--prompt-cache-enabled[=BOOL]``."""
    return _with_section(
        row,
        click.option(
            _key(row, flag),
            flag,
            cls=SettingOption,
            type=KindParam(row),
            is_flag=False,
            flag_value="true",
            default=None,
            metavar="BOOL",
            help=f"The same as {row.flags[0]}, with a value.",
        ),
    )


def _with_section(row: Setting, decorator: Callable[[Any], Any]) -> Callable[[F], F]:
    def apply(command: F) -> F:
        decorated = decorator(command)
        params: list[click.Parameter] = getattr(decorated, "__click_params__", None) or getattr(
            decorated, "params", []
        )
        # Decorators apply from the last to the first: the option just made is the newest.
        newest = params[-1]
        if isinstance(newest, SettingOption):
            newest.section = row.spec.section
        typed: F = decorated
        return typed

    return apply


def _joined(value: tuple[tuple[Any, ...], ...]) -> tuple[Any, ...]:
    """A repeated flag's values in one tuple; each occurrence was read as a list."""
    return tuple(item for part in value for item in part)
