"""The record of a benchmark: the plan and then one line of JSON a run, written as it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxctl.bench.plan import first_difference
from mlxctl.bench.run import Key, Run, read_run

FILE_NAME = "record.jsonl"
VERSION = 1


class RecordError(Exception):
    """A record that cannot be begun, read or gone on with; one readable line."""


class Record:
    """Runs by their key, in a file that grows by a line a run."""

    def __init__(self, path: Path, runs: dict[Key, Run]) -> None:
        self.path = path
        self._runs = runs

    def done(self, key: Key) -> bool:
        """Whether there is a run of this key that went well."""
        run = self._runs.get(key)
        return run is not None and run.failure is None

    def add(self, run: Run) -> None:
        """Keep a run, in place of an earlier one of its key."""
        # As it is written, so that figures are the same when it is read again.
        self._runs[run.key] = read_run(run.as_dict())
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"run": run.as_dict()}) + "\n")

    @property
    def runs(self) -> list[Run]:
        """All runs, by repeat; the scenarios and servers of each in the order of their running."""
        return sorted(self._runs.values(), key=lambda run: run.repeat)


def open_record(folder: Path, plan: Mapping[str, Any], *, resume: bool) -> Record:
    """Begin a record in a folder, or go on with the one that is there.

    Raises RecordError where there is one already and ``resume`` is off, where there is none and it
    is on, or where it has another plan: the first field that differs is named then.
    """
    path = folder / FILE_NAME
    if path.exists() and not resume:
        raise RecordError(
            f"--out {folder}: has a record already; give --resume to go on with it,"
            " or another folder"
        )
    if resume:
        recorded, runs, whole = read_record(path)
        if (found := first_difference(recorded, plan)) is not None:
            field, before, now = found
            raise RecordError(
                f"--resume: the record in {folder} has another plan:"
                f" {field} is {_shown(before)} there and {_shown(now)} here"
            )
        # What a run that was cut short had begun to write is left out.
        _write(
            path,
            [{"version": VERSION, "plan": dict(plan)}]
            + [{"run": run.as_dict()} for run in runs.values()],
        ) if not whole else None
        return Record(path, runs)
    folder.mkdir(parents=True, exist_ok=True)
    _write(path, [{"version": VERSION, "plan": dict(plan)}])
    return Record(path, {})


def read_record(path: Path) -> tuple[dict[str, Any], dict[Key, Run], bool]:
    """A record's plan, its runs, and whether its last line is whole; raises RecordError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from None
    lines = text.split("\n")
    torn = lines.pop()
    runs: dict[Key, Run] = {}
    try:
        head = json.loads(lines[0])
        if head["version"] != VERSION:
            raise RecordError(f"{path}: is of version {head['version']}, expected {VERSION}")
        plan: dict[str, Any] = head["plan"]
        for line in lines[1:]:
            run = read_run(json.loads(line)["run"])
            runs[run.key] = run
    except (ValueError, LookupError, TypeError) as error:
        raise RecordError(f"{path}: is not a record of this benchmark: {error}") from None
    return plan, runs, not torn


def _write(path: Path, lines: list[dict[str, Any]]) -> None:
    whole = path.with_suffix(".new")
    whole.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    whole.replace(path)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
