"""A record grows by a line a run, and is gone on with only under the same plan."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from mlxctl.bench.answer import Answer
from mlxctl.bench.plan import Plan, ServerSpec, Sizes, first_difference
from mlxctl.bench.record import FILE_NAME, RecordError, open_record
from mlxctl.bench.run import Run

PLAN = Plan(
    "/models/m",
    (ServerSpec("a", "mlxceld", ("x",)), ServerSpec("b", "mlxceld", ("x",), ("--no-apc",))),
    ("idle", "churn"),
    Sizes(),
)


def a_run(repeat: int = 0, **fields: Any) -> Run:
    one = Answer(0, 1, arrivals=[0.25, 0.5], text="ä", cached_tokens=3)
    return Run(repeat, "churn", "a", wall=1.5, answers=[one], memory_samples=[(0.1, 7)], **fields)


def test_what_was_recorded_is_not_run_again(tmp_path: Path):
    record = open_record(tmp_path / "new", PLAN.as_dict(), resume=False)
    record.add(a_run(1))
    record.add(a_run(0))
    record.add(a_run(2, failure="it died", log="the end"))
    again = open_record(tmp_path / "new", PLAN.as_dict(), resume=True)
    assert [run.repeat for run in again.runs] == [0, 1, 2]
    assert again.runs[0] == a_run(0)
    done = [again.done((repeat, "churn", "a")) for repeat in range(4)]
    assert done == [True, True, False, False]
    again.add(a_run(2))
    assert open_record(tmp_path / "new", PLAN.as_dict(), resume=True).done((2, "churn", "a"))


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path):
    record = open_record(tmp_path, PLAN.as_dict(), resume=False)
    record.add(a_run(0))
    record.add(a_run(1))
    whole = (tmp_path / FILE_NAME).read_text()
    (tmp_path / FILE_NAME).write_text(whole[:-40])
    again = open_record(tmp_path, PLAN.as_dict(), resume=True)
    assert [run.repeat for run in again.runs] == [0]
    again.add(a_run(1))
    assert (tmp_path / FILE_NAME).read_text() == whole


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"seed": 7}, "seed is 1 there and 7 here"),
        ({"sizes": Sizes(prefix_tokens=700)}, "sizes.prefix_tokens is 3700 there and 700 here"),
        ({"scenarios": ("idle",)}, 'scenarios is ["idle", "churn"] there and ["idle"] here'),
        ({"scenarios": ("idle", "mixed")}, 'scenarios[1] is "churn" there and "mixed" here'),
        (
            {"servers": (PLAN.servers[0], ServerSpec("b", "mlxceld", ("x",), ("--apc",)))},
            'servers[1].flags[0] is "--no-apc" there and "--apc" here',
        ),
    ],
)
def test_another_plan_is_refused_with_the_field_named(tmp_path: Path, changed, field):
    open_record(tmp_path, PLAN.as_dict(), resume=False)
    with pytest.raises(RecordError) as refused:
        open_record(tmp_path, dataclasses.replace(PLAN, **changed).as_dict(), resume=True)
    assert field in str(refused.value)


def test_a_record_is_not_written_over_and_not_made_up(tmp_path: Path):
    with pytest.raises(RecordError, match="cannot be read"):
        open_record(tmp_path, PLAN.as_dict(), resume=True)
    open_record(tmp_path, PLAN.as_dict(), resume=False)
    with pytest.raises(RecordError, match="--resume"):
        open_record(tmp_path, PLAN.as_dict(), resume=False)


@pytest.mark.parametrize("text", ["", "{}\n", "[]\n", '{"version": 9, "plan": {}}\n', "x\n"])
def test_another_file_is_no_record(tmp_path: Path, text):
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(RecordError):
        open_record(tmp_path, PLAN.as_dict(), resume=True)


def test_equal_plans_have_no_difference():
    assert first_difference(PLAN.as_dict(), PLAN.as_dict()) is None
    assert first_difference({"a": 1}, {"a": 1, "b": None}) is None
    assert first_difference({}, {"b": 2}) == ("b", None, 2)
