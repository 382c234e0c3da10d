"""What each scenario of the benchmark takes, counted, is what the checked-in table says.

A count that rises fails, and one that falls too, so that the table stays true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from mlxceld.engine import sharing, snapshot_reuse
from mlxceld.engine.batch import DecodeBatch
from mlxceld.prompt_cache.held_blocks import HeldBlocks
from work_counter import PromptTree, Work
from work_scenarios import SCENARIOS
from work_table import FAMILIES, HINT, TABLE, as_text, difference, make_core, read_table

pytestmark = pytest.mark.skipif(
    mx.default_device() != mx.cpu, reason="the table is of a CPU, where attention evaluates more"
)

Load = Callable[[str], Any]

PAGED = ("llama", "deepseek_v3")


async def _count(load: Load, family: str, scenario: str) -> dict[str, int]:
    return (await SCENARIOS[scenario].count(make_core(load(family)))).as_row()


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("family", FAMILIES)
async def test_the_work_is_what_the_table_says(
    tiny_model: Load, family: str, scenario: str
) -> None:
    wanted = read_table().get(family, {}).get(scenario)
    changes = difference(f"{family} {scenario}", wanted, await _count(tiny_model, family, scenario))
    assert not changes, f"\n{changes}\n{HINT}"


def test_the_table_has_every_row_and_no_other() -> None:
    table = read_table()
    assert list(table) == list(FAMILIES)
    columns = list(Work().as_row())
    for rows in table.values():
        assert list(rows) == list(SCENARIOS)
        assert all(list(row) == columns for row in rows.values())
    assert TABLE.read_text() == as_text(table), "written by hand?"


@pytest.mark.parametrize("family", FAMILIES)
def test_an_idle_engine_does_nothing(family: str) -> None:
    assert not any(read_table()[family]["idle"].values())


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "idle"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_prompts_have_in_common_is_computed_once(family: str, scenario: str) -> None:
    row = read_table()[family][scenario]
    # Where states are kept for the next turn, the generation prompt comes after that point.
    again = 0 if family in PAGED or scenario != "multiturn" else 3 * row["requests"]
    assert row["tokens_computed"] <= 1.02 * row["tokens_distinct"] + again


def test_new_tokens_are_those_that_no_prompt_had_there() -> None:
    tree = PromptTree()
    assert [
        tree.add(prompt) for prompt in ([1, 2, 3], [1, 2, 4, 5], [2, 3], [1, 2], [1, 2, 3])
    ] == [
        3,
        2,
        2,
        1,
        1,
    ]


async def test_what_ran_before_does_not_count(tiny_model: Load) -> None:
    first = await _count(tiny_model, "llama", "shared_prefix_burst_warm")
    assert await _count(tiny_model, "llama", "shared_prefix_burst_warm") == first


# What the guard is for: each of these has been written by mistake somewhere.


async def _changed(load: Load, family: str, scenario: str) -> dict[str, int]:
    """By how much the counts are beyond the table's, where they are not the same."""
    wanted, counted = read_table()[family][scenario], await _count(load, family, scenario)
    return {name: counted[name] - wanted[name] for name in wanted if counted[name] != wanted[name]}


async def test_it_sees_a_burst_that_shares_nothing_in_flight(
    tiny_model: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "leader_of", lambda *_: (None, 0))
    changed = await _changed(tiny_model, "llama", "shared_prefix_burst_cold")
    assert changed["tokens_computed"] == -changed["tokens_adopted"] > 0
    assert changed["positions"] > 0


async def test_it_sees_a_donation_that_copies_the_whole_row(
    tiny_model: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeldBlocks, "shareable", lambda *_: ())
    changed = await _changed(tiny_model, "llama", "seqshare")
    assert changed["pool_written"] > 0
    assert changed["blocks_allocated"] > 0
    assert "tokens_computed" not in changed


async def test_it_sees_a_step_that_is_waited_for(
    tiny_model: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DecodeBatch, "waits_for_tokens", True)
    changed = await _changed(tiny_model, "llama", "decode_4")
    assert changed == {"overlapped_steps": -read_table()["llama"]["decode_4"]["overlapped_steps"]}


async def test_it_sees_an_evaluation_more_a_step(
    tiny_model: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = DecodeBatch.launch

    def launch_and_wait(batch: DecodeBatch) -> Any:
        step = launch(batch)
        mx.eval(step.tokens)
        return step

    monkeypatch.setattr(DecodeBatch, "launch", launch_and_wait)
    changed = await _changed(tiny_model, "qwen3_next", "decode_4")
    assert changed == {"evals": read_table()["qwen3_next"]["decode_4"]["decode_steps"]}


async def test_it_sees_rows_taken_out_that_nobody_keeps(
    tiny_model: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_reuse, "_may_be_kept", lambda _: True)
    changed = await _changed(tiny_model, "qwen3_next", "decode_8")
    assert changed["rows_copied"] > 0


def test_a_difference_is_told_by_name_and_size() -> None:
    wanted, counted = {"evals": 40, "reads": 10}, {"evals": 50, "reads": 10, "more": 1}
    assert difference("llama churn", wanted, wanted) == ""
    assert difference("llama churn", wanted, counted) == (
        "llama churn:\n  evals: 40 -> 50 (+10, +25.0%)\n  more: 0 -> 1 (+1)"
    )
    assert difference("llama churn", None, counted) == "llama churn: not in the table"
