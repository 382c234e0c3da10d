"""Runs a plan: a fresh server for each scenario and repeat, the servers in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from mlxctl.bench.measuring import Measurer
from mlxctl.bench.names import process_of
from mlxctl.bench.plan import Plan, ServerSpec
from mlxctl.bench.process import Server, ServerFailure, serving
from mlxctl.bench.record import Record
from mlxctl.bench.run import Run
from mlxctl.bench.scenarios import Scenario, make_scenario
from mlxctl.bench.texts import Count

_STARTS_TO_GIVE_UP = 2
"""Starts in a row that fail before a server is not tried again."""


class Watcher(Protocol):
    """Who is told how far a benchmark is."""

    def begin(self, repeat: int, scenario: str, server: str) -> None:
        """A run begins."""

    def end(self, run: Run | None) -> None:
        """It has ended; None if it was in the record already."""


@dataclass(frozen=True)
class Unit:
    """Scenarios that one server process runs, one after another."""

    repeat: int
    server: ServerSpec
    scenarios: tuple[str, ...]


def units(plan: Plan) -> Iterator[Unit]:
    """What is to run, in order: of each scenario all servers, another one first each repeat."""
    groups: dict[str, list[str]] = {}
    for name in plan.scenarios:
        groups.setdefault(process_of(name), []).append(name)
    for repeat in range(plan.repeats):
        first = repeat % len(plan.servers)
        order = plan.servers[first:] + plan.servers[:first]
        for scenarios in groups.values():
            for server in order:
                yield Unit(repeat, server, tuple(scenarios))


Start = Callable[..., AbstractContextManager[Server]]


@dataclass
class Runner:
    """Runs what the record does not have yet; ``start_timeout`` in seconds."""

    plan: Plan
    record: Record
    measurer: Measurer
    count: Count
    watcher: Watcher
    start_timeout: float
    start: Start = serving
    _failed_starts: dict[str, int] = field(default_factory=dict)
    _seen: dict[str, list[list[int]]] = field(default_factory=dict)

    def run(self) -> None:
        """Run everything; what fails is recorded, and the next goes on."""
        for unit in units(self.plan):
            left = []
            for name in unit.scenarios:
                if self.record.done((unit.repeat, name, unit.server.name)):
                    self.watcher.begin(unit.repeat, name, unit.server.name)
                    self.watcher.end(None)
                else:
                    left.append(name)
            while left:
                left = self._with_one_process(unit, left)

    def _with_one_process(self, unit: Unit, names: Sequence[str]) -> list[str]:
        """Run scenarios until one fails; returns those that are left for another process."""
        left = list(names)
        spec = unit.server
        self.watcher.begin(unit.repeat, left[0], spec.name)
        ready, seen = False, self._seen.get(spec.name, [])
        try:
            if self._failed_starts.get(spec.name, 0) >= _STARTS_TO_GIVE_UP:
                raise ServerFailure(f"not tried again after {_STARTS_TO_GIVE_UP} failed starts")
            with self.start(spec, model=self.plan.model, timeout=self.start_timeout) as server:
                ready = True
                if spec.kind == "url":
                    # The same process all the time.
                    self._seen[spec.name] = seen
                self._failed_starts[spec.name] = 0
                while left:
                    if left[0] != names[0]:
                        self.watcher.begin(unit.repeat, left[0], spec.name)
                    run = self.measurer.measure(
                        self._scenario(left.pop(0), unit.repeat), server, unit.repeat, seen
                    )
                    self._keep(run)
                    if run.failure is not None:
                        break
        except ServerFailure as failure:
            if not ready:
                self._failed_starts[spec.name] = self._failed_starts.get(spec.name, 0) + 1
            run = Run(unit.repeat, left.pop(0), spec.name)
            run.failure, run.log = failure.what, failure.log
            self._keep(run)
        return left

    def _keep(self, run: Run) -> None:
        self.record.add(run)
        self.watcher.end(run)

    def _scenario(self, name: str, repeat: int) -> Scenario:
        return make_scenario(
            name,
            seed=self.plan.seed,
            repeat=repeat,
            sizes=self.plan.sizes,
            count=self.count,
            dialect=self.measurer.dialect,
        )
