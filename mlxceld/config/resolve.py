"""Which value of each setting is in force, and where it came from."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

from mlxceld.config import paths
from mlxceld.config.table import SETTINGS, Setting, Settings
from mlxceld.config.yamlfile import ConfigFileError, read_file

CONFIG_ENV = "MLXCEL_CONFIG"


class Source(enum.StrEnum):
    """Where a value came from; the later ones win."""

    DEFAULT = "default"
    FILE = "file"
    ENV = "env"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """The settings in force.

    ``notes`` are lines worth an INFO log, ``warnings`` lines worth a WARNING; ``config_file`` is
    the file that was read.
    """

    settings: Settings
    sources: Mapping[str, Source]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    config_file: Path | None = None


@dataclass(frozen=True, slots=True)
class EffectiveRow:
    """One setting as ``check-config`` shows it."""

    name: str
    value: str
    source: Source


def resolve(
    flags: Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None = None,
    config_file: Path | None = None,
    search: bool = True,
) -> ResolvedSettings:
    """Flag, then environment, then file, then default.

    Args:
        flags: values by setting name, of their kinds, for the flags that were given.
        environ: the environment; the process's by default.
        config_file: the file to read; by default ``$MLXCEL_CONFIG``, else the first of the
            platform's places that exists, unless ``search`` is off.

    Raises ConfigFileError with all that is wrong in the file. A bad variable is ignored, with a
    warning.
    """
    environ = os.environ if environ is None else environ
    if config_file is None and search:
        config_file = _find_file(environ)
    from_file = read_file(config_file) if config_file is not None else {}
    notes: list[str] = []
    warnings: list[str] = []
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    for name, row in SETTINGS.items():
        variable, from_env = _read_env(row, environ, warnings)
        base = Path.cwd()
        if name in flags:
            values[name], sources[name] = flags[name], Source.FLAG
            if variable is not None:
                notes.append(f"{row.flags[0]} is given, so {variable} is ignored")
        elif variable is not None:
            values[name], sources[name] = from_env, Source.ENV
        elif name in from_file and config_file is not None:
            values[name], sources[name] = from_file[name], Source.FILE
            base = config_file.absolute().parent
        else:
            values[name], sources[name] = row.default, Source.DEFAULT
            if name == "state_dir":
                values[name] = paths.default_state_dir(environ)
        values[name] = _absolute(name, values[name], base)
    settings = cast(Settings, _build(Settings(), values, ""))
    return ResolvedSettings(settings, sources, tuple(notes), tuple(warnings), config_file)


def effective(resolved: ResolvedSettings) -> list[EffectiveRow]:
    """Every setting with its value as text and its source; no value is a secret."""
    rows = []
    for name, row in SETTINGS.items():
        value = value_of(resolved.settings, name)
        text = row.kind.format(value) or row.spec.default_text or "none"
        rows.append(EffectiveRow(name, text, resolved.sources[name]))
    return rows


def value_of(settings: Settings, name: str) -> Any:
    """The value of a dotted name."""
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _find_file(environ: Mapping[str, str]) -> Path | None:
    named = environ.get(CONFIG_ENV)
    if named:
        return Path(named).expanduser()
    return next((path for path in paths.config_files(environ) if path.is_file()), None)


def _read_env(
    row: Setting, environ: Mapping[str, str], warnings: list[str]
) -> tuple[str | None, Any]:
    """The first of the setting's variables that is set to something usable, and its value."""
    for variable in row.env:
        text = environ.get(variable, "")
        if not text:
            continue
        try:
            return variable, row.parse_env(text)
        except ValueError as error:
            warnings.append(f"{variable} is ignored: {error}")
    return None, None


def _absolute(name: str, value: Any, base: Path) -> Any:
    """Paths made absolute, from the file's folder or the current one: a daemon changes its own."""
    if isinstance(value, Path):
        return base / value
    if isinstance(value, tuple):
        return tuple(_absolute(name, item, base) for item in value)
    if name == "model" and isinstance(value, str):
        local = base / Path(value).expanduser()
        return str(local) if local.exists() and value != "demo" else value
    return value


def _build(group: Any, values: Mapping[str, Any], prefix: str) -> Any:
    changes = {}
    for item in fields(group):
        name = f"{prefix}{item.name}"
        current = getattr(group, item.name)
        changes[item.name] = (
            _build(current, values, f"{name}.") if is_dataclass(current) else values[name]
        )
    return replace(group, **changes)


__all__ = [
    "CONFIG_ENV",
    "ConfigFileError",
    "EffectiveRow",
    "ResolvedSettings",
    "Source",
    "effective",
    "resolve",
    "value_of",
]
