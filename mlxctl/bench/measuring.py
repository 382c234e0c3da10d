"""One scenario against one server that is ready: warm it, watch it, send, and sum up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlxctl.bench import told
from mlxctl.bench.memory import MemoryWatch, cpu_seconds
from mlxctl.bench.process import Server, ServerFailure
from mlxctl.bench.run import Run
from mlxctl.bench.scenarios import Dialect, Scenario
from mlxctl.bench.tokens import ChatTokens
from mlxctl.bench.traffic import Asked, Sender
from mlxctl.bench.trie import distinct_tokens

_TELLS = ("mlxceld", "url")
"""Kinds of servers that may have mlxceld's metrics."""

_COUNTS_THE_STOP = "mlx_lm.server"
"""Its completion tokens have the token in them that ended the answer."""

_STOPPED = ("stop", "tool_calls")


@dataclass(frozen=True)
class Measurer:
    """How runs are measured. ``tokens`` is None where no model folder is known.

    ``banned`` are ids of tokens that no answer may have.
    Times are in seconds: ``timeout`` of one request, ``settle`` before memory is looked at.
    """

    tokens: ChatTokens | None
    dialect: Dialect
    timeout: float
    settle: float
    min_prefix: int
    banned: tuple[int, ...] = ()
    sleep: Callable[[float], None] = time.sleep

    def measure(
        self, scenario: Scenario, server: Server, repeat: int, seen: list[list[int]]
    ) -> Run:
        """Run a scenario; what fails is in the run.

        ``seen`` are the prompts that this process has had before; those of the scenario are added.
        """
        run = Run(repeat, scenario.name, server.spec.name)
        sender = Sender(server.url, server.model, self.timeout, self.dialect.tools, self.banned)
        warming: list[Asked] = []
        measured: list[Asked] = []
        try:
            warming = sender.warm(scenario)
            _check(warming, "the warming request", server)
            self.sleep(self.settle)
            tells = server.spec.kind in _TELLS
            if tells:
                run.told_before = told.ask(server.url).as_dict()
            cpu = cpu_seconds(server.pid) if server.pid else None
            with MemoryWatch(server.pid) as watch:
                run.memory_before = watch.samples[0][1] if watch.samples else None
                if scenario.idle_seconds:
                    began = time.perf_counter()
                    self.sleep(scenario.idle_seconds)
                    run.wall = time.perf_counter() - began
                else:
                    measured, run.wall = sender.measure(scenario)
            cpu_now = cpu_seconds(server.pid) if server.pid else None
            if cpu is not None and cpu_now is not None:
                run.cpu_seconds = cpu_now - cpu
            run.memory_samples = watch.samples
            run.answers = [asked.answer for asked in measured]
            self.sleep(self.settle)
            run.memory_after = watch.sample()
            if tells:
                run.told_after = told.ask(server.url).as_dict()
            _check(measured, "a request", server)
        except ServerFailure as failure:
            run.failure, run.log = failure.what, failure.log
        self._count(run, server, warming, measured, seen)
        return run

    def _count(
        self,
        run: Run,
        server: Server,
        warming: Sequence[Asked],
        measured: Sequence[Asked],
        seen: list[list[int]],
    ) -> None:
        for asked in (*warming, *measured):
            answer = asked.answer
            if server.spec.kind == _COUNTS_THE_STOP and answer.finish_reason in _STOPPED:
                answer.completion_tokens = (answer.completion_tokens or 1) - 1
        if self.tokens is None or run.failure is not None:
            return
        prompts = [self.tokens.render(asked.messages, asked.tools) for asked in measured]
        for asked, prompt in zip(measured, prompts, strict=True):
            asked.answer.rendered_tokens = len(prompt)
        seen += [self.tokens.render(asked.messages, asked.tools) for asked in warming]
        run.tokens_distinct = distinct_tokens(prompts, warming=seen, min_prefix=self.min_prefix)
        seen += prompts


def _check(asked: Sequence[Asked], what: str, server: Server) -> None:
    """Raises ServerFailure if a request had no whole answer or the server has ended."""
    server.check()
    failed = [one.answer for one in asked if one.answer.error is not None]
    if failed:
        raise ServerFailure(
            f"{what} failed ({len(failed)} of {len(asked)}): {failed[0].error}", server.log_end()
        )
