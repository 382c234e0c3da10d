"""The settings as click options: ``serve``, ``start`` and ``check-config`` take the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import click

from mlxceld.config.kinds import Kind
from mlxceld.config.resolve import CONFIG_ENV, ResolvedSettings, resolve
from mlxceld.config.table import SETTINGS, Setting

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Given:
    """A flag's value; without it, a value that is None would look like a flag not given."""

    value: Any


class KindParam(click.ParamType[T], Generic[T]):
    """A kind of values as a click type: a bad one is a usage error."""

    def __init__(self, kind: Kind[T]) -> None:
        self.name = kind.metavar.lower()
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """Read the flag's text; what has been read already stays as it is."""
        if not isinstance(value, str):
            return cast(T, value)
        try:
            return self._kind.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class SettingParam(KindParam[Any]):
    """A setting's kind as a click type, for which a value of None is not a flag left out.

    Of a setting that takes several values, each is a flag of its own, taken whole.
    """

    def __init__(self, row: Setting) -> None:
        super().__init__(row.kind.item)
        self.name = row.kind.metavar.lower()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the flag's text."""
        return Given(super().convert(value, param, ctx)) if isinstance(value, str) else value


class SettingOption(click.Option):
    """An option of the table; its section groups it in the help."""

    def __init__(self, *args: Any, section: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


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
        for option in reversed(_options(row)):
            command = option(command)
    return click.option(
        "--config",
        "config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"Settings file in YAML; by default the first that exists of the platform's places."
        f" [env: {CONFIG_ENV}]",
    )(command)


def resolve_from_click(
    params: Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> ResolvedSettings:
    """Resolve the settings from a command's keyword arguments; others than ours are passed over.

    Relative paths are relative to ``folder``, by default the current one.

    Raises ConfigFileError, and click.UsageError where two flags of a setting contradict.
    """
    flags: dict[str, Any] = {}
    for name, row in SETTINGS.items():
        given = {
            spelling: _plain(value)
            for spelling, key in _keys(row)
            if (value := params.get(key)) is not None and value != ()
        }
        values = list(given.values())
        if values and any(value != values[0] for value in values):
            raise click.UsageError(f"{' and '.join(given)} say different things")
        if values:
            flags[name] = values[0]
    return resolve(flags, environ=environ, config_file=params.get("config"), folder=folder)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.value if isinstance(value, Given) else value


def _sorted_rows() -> list[Setting]:
    order = list(dict.fromkeys(row.spec.section for row in SETTINGS.values()))
    return sorted(SETTINGS.values(), key=lambda row: order.index(row.spec.section))


def _keys(row: Setting) -> list[tuple[str, str]]:
    """The setting's flags, each with the name of its parameter."""
    name = row.name.replace(".", "__")
    extras = [(flag, f"{name}__{flag[2:].replace('-', '_')}") for flag in row.flags[1:]]
    return [(row.flags[0], name), *extras]


def _options(row: Setting) -> list[Callable[[F], F]]:
    (flag, key), *extras = _keys(row)
    notes = f"[env: {', '.join(row.env)}; default: {row.default_text()}]"
    options: dict[str, Any] = {
        "default": None,
        "help": f"{row.help} {notes}",
        "cls": SettingOption,
        "section": row.spec.section,
    }
    if row.is_switch:
        first = click.option(key, flag, **options)
    else:
        typed = {"type": SettingParam(row), "metavar": row.kind.metavar, "multiple": row.kind.many}
        first = click.option(key, *flag.split("/"), **options | typed)
    return [first, *(_optional_value(row, *extra) for extra in extras)]


def _optional_value(row: Setting, flag: str, key: str) -> Callable[[F], F]:
    """The alias of a switch that takes an optional value: ``--prompt-cache-enabled[=BOOL]``."""
    return click.option(
        key,
        flag,
        cls=SettingOption,
        section=row.spec.section,
        type=SettingParam(row),
        is_flag=False,
        flag_value="true",
        default=None,
        metavar="[BOOL]",
        help=f"The same as {row.flags[0]}, with a value.",
    )
