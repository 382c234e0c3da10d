"""Reads the YAML file of settings and finds everything that is wrong with it at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxceld.config.table import SETTINGS, Setting


@dataclass(frozen=True, slots=True)
class FileError:
    """One thing wrong in the file, with the place of it. Lines and columns count from 1."""

    path: Path
    line: int
    column: int
    key: str
    text: str

    def __str__(self) -> str:
        key = f" {self.key}:" if self.key else ""
        return f"{self.path}:{self.line}:{self.column}{key} {self.text}"


class ConfigFileError(Exception):
    """The file cannot be used; ``errors`` are all that was found, in the file's order."""

    exit_code = 78
    """EX_CONFIG of sysexits(3): a service manager should not try again."""

    def __init__(self, errors: list[FileError]) -> None:
        super().__init__("\n".join(map(str, errors)))
        self.errors = errors


def read_file(path: Path) -> dict[str, Any]:
    """The settings that a file gives, by name, as values of their kinds.

    Raises ConfigFileError with every error at once.
    """
    # Imported here: most programs that know the settings never read a file.
    import yaml

    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise _whole(path, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _whole(
            path,
            f"expected UTF-8 text, found byte {error.object[error.start]:#04x}"
            f" at offset {error.start}",
        ) from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise ConfigFileError([FileError(path, *at, "", f"not valid YAML: {what}")]) from error
    except yaml.YAMLError as error:
        raise _whole(path, f"not valid YAML: {error}") from error
    if root is None:
        return {}
    reader = _Reader(path)
    reader.mapping(root, "")
    if reader.errors:
        raise ConfigFileError(sorted(reader.errors, key=lambda e: (e.line, e.column)))
    return reader.values


def _whole(path: Path, text: str) -> ConfigFileError:
    return ConfigFileError([FileError(path, 1, 1, "", text)])


class _Reader:
    """Walks the node tree; nodes keep their places, which loaded values would not."""

    def __init__(self, path: Path) -> None:
        self.values: dict[str, Any] = {}
        self.errors: list[FileError] = []
        self._path = path
        self._seen: dict[str, int] = {}

    def mapping(self, node: Any, prefix: str) -> None:
        if node.id != "mapping":
            name = prefix or "the file"
            self._error(node, prefix, f"expected {name} to be a mapping, found {_found(node)}")
            return
        for key_node, value_node in node.value:
            if key_node.id != "scalar":
                self._error(key_node, prefix, f"expected a name, found {_found(key_node)}")
                continue
            self._entry(
                key_node, value_node, f"{prefix}.{key_node.value}" if prefix else key_node.value
            )

    def _entry(self, key_node: Any, value_node: Any, name: str) -> None:
        if name in _GROUPS:
            self.mapping(value_node, name)
            return
        row = SETTINGS.get(name)
        if row is None:
            self._error(key_node, name, f"no such setting{_did_you_mean(name)}")
            return
        if name in self._seen:
            first = self._seen[name]
            self._error(key_node, name, f"given twice; the first is on line {first}")
            return
        self._seen[name] = key_node.start_mark.line + 1
        try:
            self.values[name] = _value(row, value_node)
        except ValueError as error:
            self._error(value_node, name, str(error))

    def _error(self, node: Any, key: str, text: str) -> None:
        mark = node.start_mark
        self.errors.append(FileError(self._path, mark.line + 1, mark.column + 1, key, text))


def _value(row: Setting, node: Any) -> Any:
    if row.kind.many:
        items = node.value if node.id == "sequence" else [node]
        found: list[Any] = []
        for item in items:
            if item.id != "scalar" or _is_null(item):
                raise ValueError(f"expected {row.kind.expected}, found {_found(item)}")
            found.extend(row.kind.parse(item.value))
        return tuple(found)
    if node.id != "scalar":
        raise ValueError(f"expected {row.kind.expected}, found {_found(node)}")
    if _is_null(node):
        if row.default is None:
            return None
        raise ValueError(f"expected {row.kind.expected}, found nothing")
    return row.kind.parse(node.value)


def _is_null(node: Any) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:null")


def _found(node: Any) -> str:
    if node.id == "scalar":
        return "nothing" if _is_null(node) else repr(node.value)
    return "a list" if node.id == "sequence" else "a mapping"


def _groups() -> Iterator[str]:
    for name in SETTINGS:
        parts = name.split(".")
        for depth in range(1, len(parts)):
            yield ".".join(parts[:depth])


_GROUPS = frozenset(_groups())


def _did_you_mean(name: str) -> str:
    """The nearest names; a flag or a variable in place of the key counts as near."""
    spellings: Mapping[str, str] = {
        spelling: row.name
        for row in SETTINGS.values()
        for spelling in (
            row.name,
            row.name.replace(".", "_"),
            row.name.rpartition(".")[2],
            row.env[0].lower().removeprefix("mlxcel_"),
        )
    }
    wanted = name.lower().lstrip("-").replace("-", "_").removeprefix("mlxcel_")
    near = difflib.get_close_matches(wanted, [*spellings, *_GROUPS], n=1, cutoff=0.6)
    return f"; did you mean {spellings.get(near[0], near[0])}?" if near else ""
