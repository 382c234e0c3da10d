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
    folder: Path | None = None,
) -> ResolvedSettings:
    """Flag, then environment, then file, then default.

    Args:
        flags: values by setting name, of their kinds, for the flags that were given.
        environ: the environment; the process's by default.
        config_file: the file to read; by default ``$MLXCEL_CONFIG``, else the first of the
            platform's places that exists, unless ``search`` is off.
        folder: what relative paths of flags and environment are relative to; by default the
            current folder.

    Raises ConfigFileError with all that is wrong in the file. A bad variable is ignored, with a
    warning.
    """
    environ = os.environ if environ is None else environ
    notes: list[str] = []
    warnings: list[str] = []
    file, from_file = _from_file(environ, config_file, search, notes)
    file_base = file.parent if file is not None else Path()
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    for name, row in SETTINGS.items():
        variables = _read_env(row, environ, warnings)
        given = [row.flags[0]] if name in flags else []
        given += variables
        notes += [f"{given[0]} is given, so {loser} is ignored" for loser in given[1:]]
        base = folder or paths.working_folder(environ)
        if name in flags:
            values[name], sources[name] = flags[name], Source.FLAG
        elif variables:
            values[name], sources[name] = variables[given[0]], Source.ENV
        elif name in from_file:
            values[name], sources[name], base = from_file[name], Source.FILE, file_base
        else:
            values[name], sources[name] = row.default, Source.DEFAULT
            if name == "state_dir":
                values[name] = paths.default_state_dir(environ)
        values[name] = _absolute(name, values[name], base)
    settings = cast(Settings, _build(Settings(), values, ""))
    return ResolvedSettings(settings, sources, tuple(notes), tuple(warnings), file)


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


def _from_file(
    environ: Mapping[str, str], given: Path | None, search: bool, notes: list[str]
) -> tuple[Path | None, dict[str, Any]]:
    """The file that counts, as an absolute path, and what it sets."""
    named = environ.get(CONFIG_ENV) if search else None
    if given is not None and named:
        notes.append(f"--config is given, so {CONFIG_ENV} is ignored")
    path = given or (Path(named) if named else None)
    if path is None and search:
        path = next(filter(_is_file, paths.config_files(environ)), None)
    if path is None:
        return None, {}
    path = _expanded(path)
    return path.absolute(), read_file(path)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # in a folder that this process may not look into
        return False


def _expanded(path: Path) -> Path:
    """The path with a leading ``~`` replaced, or as it is where there is no such user."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def _read_env(row: Setting, environ: Mapping[str, str], warnings: list[str]) -> dict[str, Any]:
    """The setting's variables that are set to something usable, with their values."""
    found: dict[str, Any] = {}
    for variable in row.env:
        text = environ.get(variable, "")
        if not text:
            continue
        try:
            found[variable] = row.parse_env(text)
        except ValueError as error:
            warnings.append(f"{variable} is ignored: {error}")
    return found


def _absolute(name: str, value: Any, base: Path | None) -> Any:
    """Paths made absolute, from the file's folder or the current one: a daemon changes its own."""
    if isinstance(value, Path):
        # Where it is absolute already the current folder may be gone.
        return value if value.is_absolute() else (base or Path.cwd()) / value
    if isinstance(value, tuple):
        return tuple(_absolute(name, item, base) for item in value)
    if name == "model" and isinstance(value, str):
        return absolute_model(value, base)
    return value


def absolute_model(name: str, base: Path | None) -> str:
    """A model that is, or can only be, a path made absolute; other names as they are."""
    given = _expanded(Path(name))
    sure = name.startswith(("/", "./", "../", "~")) or name.lower().endswith(".gguf")
    try:
        local = given if given.is_absolute() else (base or Path.cwd()) / given
        return str(local) if name != "demo" and (sure or local.exists()) else name
    except OSError:  # too long for a path, or in a folder that is closed
        return name


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
