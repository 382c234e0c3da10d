"""How far a benchmark is: a bar on a terminal, a line a run elsewhere; on stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from mlxctl.bench.run import Run

if TYPE_CHECKING:
    from rich.progress import Progress


class Lines:
    """A line for each run that has ended."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._ended = 0
        self._what = ""

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, repeat: int, scenario: str, server: str) -> None:
        """See :class:`~mlxctl.bench.runner.Watcher`."""
        self._what = f"repeat {repeat + 1}, {scenario}, {server}"

    def end(self, run: Run | None) -> None:
        """See :class:`~mlxctl.bench.runner.Watcher`."""
        self._ended += 1
        click.echo(f"[{self._ended}/{self._total}] {self._what}: {outcome(run)}", err=True)


class Bar:
    """A bar with the run that is under way and the time that is left."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._progress: Progress = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
            console=Console(file=sys.stderr),
            transient=True,
        )
        self._task = self._progress.add_task("", total=total)
        self._what = ""

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, repeat: int, scenario: str, server: str) -> None:
        """See :class:`~mlxctl.bench.runner.Watcher`."""
        self._what = f"repeat {repeat + 1}, {scenario}, {server}"
        self._progress.update(self._task, description=self._what)

    def end(self, run: Run | None) -> None:
        """See :class:`~mlxctl.bench.runner.Watcher`."""
        self._progress.advance(self._task)
        if run is not None and run.failure is not None:
            self._progress.console.print(f"{self._what}: {outcome(run)}", markup=False)


def outcome(run: Run | None) -> str:
    """How a run ended, in a few words."""
    if run is None:
        return "recorded before"
    if run.failure is not None:
        return f"FAILED: {run.failure.splitlines()[0]}"
    return "done"


def watcher(total: int) -> Bar | Lines:
    """A bar on a terminal, else lines."""
    return Bar(total) if sys.stderr is not None and sys.stderr.isatty() else Lines(total)
