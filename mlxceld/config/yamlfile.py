"""Reads the YAML file of settings and finds everything that is wrong with it at once."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxceld.config.kinds import Kind
from mlxceld.config.table import SETTINGS, Setting
from mlxceld.config.units import shown

MAX_BYTES = 2**20
"""The longest file that is read: far more than every setting takes, and no endless device."""


@dataclass(frozen=True, slots=True)
class FileError:
    """One thing wrong in the file, with the place of it.

    Lines and columns count from 1; line 0 means the file as a whole.
    """

    path: Path
    line: int
    column: int
    key: str
    text: str

    def __str__(self) -> str:
        place = f":{self.line}:{self.column}" if self.line else ":"
        key = self.key if self.key.isprintable() else shown(self.key)
        return f"{self.path}{place} {f'{key}: ' if key else ''}{self.text}"


class ConfigFileError(Exception):
    """The file cannot be used; ``errors`` are all that was found, in the file's order."""

    exit_code = os.EX_CONFIG
    """78 of sysexits(3): a service manager should not try again."""

    def __init__(self, errors: list[FileError]) -> None:
        super().__init__("\n".join(map(str, errors)))
        self.errors = errors


def read_file(path: Path) -> dict[str, Any]:
    """The settings that a file gives, by name, as values of their kinds.

    A setting given as nothing (null) is left out where its default is to be absent. Raises
    ConfigFileError with every error at once.
    """
    root = _compose(path, _read_text(path))
    if root is None:
        return {}
    reader = _Reader(path)
    reader.root(root)
    if reader.errors:
        raise ConfigFileError(sorted(reader.errors, key=lambda e: (e.line, e.column)))
    return reader.values


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _whole(path, f"cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise _whole(path, f"expected at most {MAX_BYTES} bytes, found more")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        what = f"expected UTF-8 text, found byte {data[error.start]:#04x}"
        raise ConfigFileError([FileError(path, *_place(before), "", what)]) from error


def _compose(path: Path, text: str) -> Any:
    """The tree of nodes, None for a file without any."""
    # Imported here: most programs that know the settings never read a file.
    import yaml

    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        what = " ".join(part for part in (error.context, error.problem) if part)
    except yaml.reader.ReaderError as error:
        at = _place(text[: error.position])
        what = f"character {error.character:#06x} is not allowed"
    except RecursionError:
        at, what = (0, 0), "it is nested too deeply"
    raise ConfigFileError([FileError(path, *at, "", f"not valid YAML: {what}")])


def _place(before: str) -> tuple[int, int]:
    """The line and column, from 1, that follow a text."""
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _whole(path: Path, text: str) -> ConfigFileError:
    return ConfigFileError([FileError(path, 0, 0, "", text)])


class _Reader:
    """Walks the node tree; nodes keep their places, which loaded values would not."""

    def __init__(self, path: Path) -> None:
        self.values: dict[str, Any] = {}
        self.errors: list[FileError] = []
        self._path = path
        self._seen: dict[str, int] = {}

    def root(self, node: Any) -> None:
        if node.id == "mapping":
            self._entries(node, "")
        elif not _is_null(node):
            self._error(node, "", f"expected a mapping of settings, found {_found(node)}")

    def _entries(self, node: Any, prefix: str) -> None:
        for key_node, value_node in node.value:
            if key_node.id != "scalar" or _is_null(key_node):
                self._error(key_node, prefix, f"expected a name, found {_found(key_node)}")
                continue
            name = f"{prefix}.{key_node.value}" if prefix else key_node.value
            self._entry(key_node, value_node, name)

    def _entry(self, key_node: Any, value_node: Any, name: str) -> None:
        row = SETTINGS.get(name)
        if row is None and name not in _GROUPS:
            merge = key_node.tag == "tag:yaml.org,2002:merge"
            hint = "; merge keys are not read" if merge else _did_you_mean(name)
            self._error(key_node, name, f"no such setting{hint}")
            return
        if name in self._seen:
            self._error(key_node, name, f"given twice; the first is on line {self._seen[name]}")
            return
        self._seen[name] = key_node.start_mark.line + 1
        # What an alias stands for is further up; an error is where it is used.
        aliased = value_node.start_mark.index < key_node.start_mark.index
        at = key_node if aliased else value_node
        if row is None:
            self._group(value_node, name, at)
        elif not (row.optional and _is_null(value_node)):
            self._setting(row, value_node, at)

    def _setting(self, row: Setting, node: Any, at: Any) -> None:
        if not row.kind.many or node.id != "sequence":
            value = self._parse(row.kind, node, at, row.name)
        else:
            value = tuple(
                self._parse(row.kind.item, item, item if at is node else at, row.name)
                for item in node.value
            )
        self.values[row.name] = value

    def _parse(self, kind: Kind[Any], node: Any, at: Any, name: str) -> Any:
        """The value of a scalar as it is written: ``off`` is that word, and ``08`` is 8."""
        if node.id != "scalar" or _is_null(node) or node.tag not in _TEXT_TAGS:
            self._error(at, name, f"expected {kind.expected}, found {_found(node)}")
            return None
        try:
            return kind.parse(node.value)
        except ValueError as error:
            self._error(at, name, str(error))
            return None

    def _group(self, node: Any, name: str, at: Any) -> None:
        if node.id == "mapping":
            self._entries(node, name)
        elif not _is_null(node):  # all of a group may be commented out
            switch = f"{name}.enabled"
            hint = f"; did you mean {switch}?" if switch in SETTINGS else ""
            found = _found(node)
            self._error(at, name, f"expected a mapping of settings, found {found}{hint}")

    def _error(self, node: Any, key: str, text: str) -> None:
        mark = node.start_mark
        self.errors.append(FileError(self._path, mark.line + 1, mark.column + 1, key, text))


_TEXT_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "timestamp", "merge", "value")
)
"""What plain text may look like to YAML, or be said to be; others would need to be built."""


def _is_null(node: Any) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:null")


def _found(node: Any) -> str:
    if node.id != "scalar":
        return "a list" if node.id == "sequence" else "a mapping"
    if _is_null(node):
        return "nothing"
    tag = "" if node.tag in _TEXT_TAGS else f" with the tag {shown(node.tag)}"
    return f"{shown(node.value)}{tag}"


def _groups() -> Iterator[str]:
    for name in SETTINGS:
        parts = name.split(".")
        for depth in range(1, len(parts)):
            yield ".".join(parts[:depth])


_GROUPS = frozenset(_groups())


def _did_you_mean(name: str) -> str:
    """The nearest names; a flag, a variable or a name without its group counts as near."""
    spellings: dict[str, set[str]] = {group: {group} for group in _GROUPS}
    for row in SETTINGS.values():
        for spelling in (row.name, row.name.replace(".", "_"), row.name.rpartition(".")[2]):
            spellings.setdefault(spelling, set()).add(row.name)
    wanted = name.lower().lstrip("-").replace("-", "_").removeprefix("mlxcel_")
    near = difflib.get_close_matches(wanted[:100], spellings, n=1, cutoff=0.6)
    return f"; did you mean {' or '.join(sorted(spellings[near[0]]))}?" if near else ""
