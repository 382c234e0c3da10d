"""One call of ``mlxctl bench``: the plan, its record, and what is written beside it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from mlxctl.bench.measuring import Measurer
from mlxctl.bench.plan import Plan
from mlxctl.bench.progress import watcher
from mlxctl.bench.record import Record, RecordError, open_record
from mlxctl.bench.report import markdown
from mlxctl.bench.runner import Runner
from mlxctl.bench.scenarios import Dialect
from mlxctl.bench.summary import summarise
from mlxctl.bench.texts import rough_count
from mlxctl.bench.tokens import ChatTokens
from mlxctl.errors import CtlError, ExitCode

_STOPPING = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Session:
    """What a call asks for; times in seconds."""

    plan: Plan
    folder: Path
    resume: bool
    plot: bool
    request_timeout: float
    start_timeout: float

    def run(self) -> dict[str, Any]:
        """Run what is left of the plan and return the summary; raises CtlError.

        Ctrl-C (KeyboardInterrupt) stops the server that runs and leaves the record as it is.
        """
        if self.plot:
            _check_plotting()
        tokens, dialect = _tokens(self.plan.model)
        banned = _end_tokens(tokens, self.plan.model) if self.plan.ignore_eos else ()
        try:
            record = open_record(self.folder, self.plan.as_dict(), resume=self.resume)
        except RecordError as error:
            raise CtlError("record", str(error), ExitCode.USAGE) from None
        runs_in_all = self.plan.repeats * len(self.plan.scenarios) * len(self.plan.servers)
        with _stopped_in_order(), watcher(runs_in_all) as progress:
            Runner(
                self.plan,
                record,
                Measurer(
                    tokens,
                    dialect,
                    self.request_timeout,
                    self.plan.settle_seconds,
                    self.plan.min_prefix,
                    banned,
                ),
                tokens.count if tokens else rough_count,
                progress,
                self.start_timeout,
            ).run()
        return self._finish(record, runs_in_all)

    def _finish(self, record: Record, runs_in_all: int) -> dict[str, Any]:
        complete = sum(run.failure is None for run in record.runs) == runs_in_all
        summary = summarise(self.plan, record.runs, complete=complete)
        (self.folder / "result.json").write_text(json.dumps(summary, indent=2) + "\n")
        (self.folder / "result.md").write_text(markdown(summary))
        if self.plot:
            from mlxctl.bench.plots import draw

            draw(summary, record.runs, self.folder)
        return summary


def _tokens(model: str | None) -> tuple[ChatTokens | None, Dialect]:
    if model is None:
        return None, Dialect(tools=False)
    try:
        tokens = ChatTokens(model)
        return tokens, tokens.dialect()
    except (OSError, ValueError, KeyError) as error:
        raise CtlError(
            "tokenizer",
            f"--model {model}: its prompts cannot be rendered: {error}",
            ExitCode.REFUSED,
        ) from None


def _end_tokens(tokens: ChatTokens | None, model: str | None) -> tuple[int, ...]:
    if tokens is None:
        raise CtlError(
            "end_tokens",
            "--ignore-eos needs the model's folder, which names the tokens that end an answer",
            ExitCode.USAGE,
            hint="give --model FOLDER with --url, too",
        )
    try:
        return tokens.end_tokens()
    except (OSError, ValueError) as error:
        raise CtlError(
            "end_tokens", f"--ignore-eos: model {model}: {error}", ExitCode.REFUSED
        ) from None


def _check_plotting() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise CtlError(
            "no_matplotlib",
            "--plot needs matplotlib, which is not installed",
            ExitCode.USAGE,
            hint="install it with: pip install 'mlxceld[bench]'; or give --no-plot",
        ) from None


@contextmanager
def _stopped_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end a benchmark as Ctrl-C does: with its servers stopped."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # What is ignored stays so: nohup lets a benchmark outlive its terminal.
    heeded = [number for number in _STOPPING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
