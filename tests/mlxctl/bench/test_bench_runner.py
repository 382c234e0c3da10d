"""The order of the runs, and what a server that fails means for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlxctl.bench.plan import Plan, ServerSpec, Sizes
from mlxctl.bench.process import Server, ServerFailure
from mlxctl.bench.record import open_record
from mlxctl.bench.run import Run
from mlxctl.bench.runner import Runner, units
from mlxctl.bench.scenarios import Dialect

A, B = ServerSpec("a", "mlxceld"), ServerSpec("b", "mlxceld")
PLAN = Plan("/m", (A, B), ("churn", "decode_1", "decode_2"), Sizes(), repeats=2)


class Scene:
    """Stands in for servers and measuring: remembers starts, and fails where it is told to."""

    dialect = Dialect()

    def __init__(self, folder: Path, plan: Plan = PLAN, *, resume: bool = False) -> None:
        self.starts: list[str] = []
        self.measured: list[tuple[int, str, str]] = []
        self.seen: list[int] = []
        self.dead: set[str] = set()
        self.failing: set[str] = set()
        self.record = open_record(folder, plan.as_dict(), resume=resume)
        self.plan = plan

    def run(self) -> list[Run]:
        measurer: Any = self
        Runner(self.plan, self.record, measurer, len, self, 1.0, start=self.start).run()
        return self.record.runs

    @contextmanager
    def start(self, spec: ServerSpec, *, model: str | None, timeout: float) -> Iterator[Server]:
        self.starts.append(spec.name)
        if spec.name in self.dead:
            raise ServerFailure("no room", "its last words")
        yield Server(spec, "http://x", "m")

    def measure(self, scenario: Any, server: Server, repeat: int, seen: list[list[int]]) -> Run:
        run = Run(repeat, scenario.name, server.spec.name, wall=1.0)
        self.seen.append(len(seen))
        seen.append([1])
        self.measured.append(run.key)
        if scenario.name in self.failing:
            run.failure = "it died"
        return run

    def begin(self, repeat: int, scenario: str, server: str) -> None: ...

    def end(self, run: Run | None) -> None: ...


def test_servers_take_turns_and_another_one_is_first_each_repeat():
    order = [(unit.repeat, unit.server.name, unit.scenarios) for unit in units(PLAN)]
    decode = ("decode_1", "decode_2")
    assert order == [
        *((0, "a", ("churn",)), (0, "b", ("churn",)), (0, "a", decode), (0, "b", decode)),
        *((1, "b", ("churn",)), (1, "a", ("churn",)), (1, "b", decode), (1, "a", decode)),
    ]


def test_a_fresh_process_each_and_one_for_the_levels_of_decode(tmp_path: Path):
    scene = Scene(tmp_path)
    assert len(scene.run()) == 12
    assert scene.starts == ["a", "b", "a", "b", "b", "a", "b", "a"]
    # What a process has seen: nothing, nothing, and then the level before.
    assert scene.seen == [0, 0, 0, 1, 0, 1] * 2


def test_what_is_recorded_is_not_started_again(tmp_path: Path):
    first = Scene(tmp_path)
    first.failing = {"decode_2"}
    first.run()
    again = Scene(tmp_path, resume=True)
    runs = again.run()
    assert again.measured == [
        (r, "decode_2", s) for r, s in ((0, "a"), (0, "b"), (1, "b"), (1, "a"))
    ]
    assert [run.failure for run in runs] == [None] * 12


def test_after_a_run_that_failed_the_rest_gets_another_process(tmp_path: Path):
    scene = Scene(tmp_path)
    scene.failing = {"decode_1"}
    runs = scene.run()
    assert [run.scenario for run in runs if run.failure] == ["decode_1"] * 4
    assert len(scene.starts) == 12


def test_a_server_that_does_not_start_is_told_and_soon_left_alone(tmp_path: Path):
    scene = Scene(tmp_path)
    scene.dead = {"b"}
    runs = scene.run()
    failed = [run for run in runs if run.failure]
    assert {run.server for run in failed} == {"b"}
    assert len(failed) == 6
    assert scene.starts.count("b") == 2
    assert (failed[0].failure, failed[0].log) == ("no room", "its last words")
    assert failed[-1].failure == "not tried again after 2 failed starts"


def test_a_server_that_runs_already_has_seen_all_that_was_sent(tmp_path: Path):
    live = ServerSpec("live", "url", url="http://x")
    scene = Scene(tmp_path, Plan(None, (live,), PLAN.scenarios, Sizes(), repeats=2))
    scene.run()
    assert scene.seen == [0, 1, 2, 3, 4, 5]
