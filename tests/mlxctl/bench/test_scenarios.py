"""The scenarios are decided by their seed, and as large as they are asked to be."""

from __future__ import annotations

import json

import pytest

from mlxctl.bench.names import GROUPS, SCENARIOS, process_of
from mlxctl.bench.plan import Sizes
from mlxctl.bench.scenarios import Dialect, Scenario, make_scenario

SIZES = Sizes(prefix_tokens=200, sharers=3, turns=4, prompts=5, idle_seconds=2.0)


def scenario(name: str, **changed: object) -> Scenario:
    given = {"seed": 1, "repeat": 0, "sizes": SIZES, "count": len, **changed}
    return make_scenario(name, **given)


def texts(one: Scenario) -> list[str]:
    return [
        message["content"]
        for conversation in (*one.conversations, *one.late)
        for turn in conversation.turns
        for message in turn.add
    ]


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_seed_gives_the_same_and_each_repeat_its_own(name):
    assert scenario(name) == scenario(name)
    assert scenario(name).name == name
    if name != "idle":
        assert texts(scenario(name)) != texts(scenario(name, repeat=1))
        assert texts(scenario(name)) != texts(scenario(name, seed=2))


def test_requests_and_how_many_at_a_time():
    found = {name: (scenario(name).requests, scenario(name).at_once) for name in SCENARIOS}
    assert found == {
        "idle": (0, 1),
        "shared_prefix_burst_cold": (3, 3),
        "shared_prefix_burst_warm": (3, 3),
        "seqshare": (3, 1),
        "multiturn": (4, 1),
        "churn": (5, 8),
        "agent_loop": (4, 1),
        "mixed": (5, 4),
        "decode_1": (1, 1),
        "decode_2": (2, 2),
        "decode_4": (4, 4),
        "decode_8": (8, 8),
    }
    assert scenario("idle").idle_seconds == 2.0
    assert len(scenario("mixed").late) == 1


@pytest.mark.parametrize(
    "name", ["shared_prefix_burst_cold", "shared_prefix_burst_warm", "seqshare"]
)
def test_sharers_share_a_prefix_of_that_length_and_ask_differently(name):
    one = scenario(name)
    systems = {conversation.turns[0].add[0]["content"] for conversation in one.conversations}
    questions = {conversation.turns[0].add[1]["content"] for conversation in one.conversations}
    (system,) = systems
    assert 190 <= len(system) <= 200
    assert len({question[0] for question in questions}) == 3
    warmed = [turn.add[0]["content"] for one in one.warming for turn in one.turns]
    assert (warmed == [system]) is name.endswith("warm")


def test_the_levels_of_decode_share_a_process_and_no_beginning():
    levels = [name for name in SCENARIOS if process_of(name) == "decode"]
    assert tuple(levels) == GROUPS["decode"]
    beginnings = [{text[0] for text in texts(scenario(name))} for name in levels]
    assert set.intersection(*beginnings) == set()
    assert len({process_of(name) for name in SCENARIOS}) == len(SCENARIOS) - 3


@pytest.mark.parametrize("native", [True, False])
def test_the_agents_conversation_has_calls_and_results_both_ways(native):
    (one,) = scenario("agent_loop", dialect=Dialect(tools=native)).conversations
    assert bool(one.tools) is native
    assert ("read_file" in one.turns[0].add[0]["content"]) is not native
    for before, turn in zip(one.turns, one.turns[1:], strict=False):
        (result,) = turn.add
        assert json.loads(before.call["function"]["arguments"])
        if native:
            assert (result["role"], result["tool_call_id"]) == ("tool", before.call["id"])
        else:
            assert result["role"] == "user"
            assert result["content"].startswith("<tool_response>\n")


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_template_without_a_system_role_gets_none(name):
    with_it, without = scenario(name), scenario(name, dialect=Dialect(system=False))
    roles = {
        message["role"]
        for one in (*without.warming, *without.conversations, *without.late)
        for turn in one.turns
        for message in turn.add
    }
    assert roles <= {"user", "tool"}
    assert "".join(texts(without)).replace("\n\n", "") == "".join(texts(with_it)).replace(
        "\n\n", ""
    )


def test_a_name_of_none_is_no_scenario():
    with pytest.raises(KeyError):
        scenario("burst")
