from __future__ import annotations

import copy
from typing import Any

import pytest

from mlxceld.models import tool_prompt
from mlxceld.models.fitting import arguments, system_texts, tool_calls, tool_fields, turns
from mlxceld.models.fitting.conversation import Conversation, Message, Step
from mlxceld.models.fitting.steps import LAST_RESORT, STEPS


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(text: str, *calls: Message, **more: Any) -> Message:
    message = {"role": "assistant", "content": text, **more}
    return {**message, "tool_calls": list(calls)} if calls else message


def system(text: str, role: str = "system") -> Message:
    return {"role": role, "content": text}


def call(given: str | None, given_arguments: Any = None, name: str = "look") -> Message:
    function = {"name": name, "arguments": given_arguments or {}}
    return {"id": given, "type": "function", "function": function}


def result(given: str | None, text: str) -> Message:
    return {"role": "tool", "tool_call_id": given, "content": text}


def after(step: Any, *messages: Message) -> list[Message]:
    before = copy.deepcopy(messages)
    changed: Conversation = step(Conversation(list(messages)))
    assert messages == before
    return changed.messages


def test_leading_system_texts_are_joined() -> None:
    joined = after(
        system_texts.join_leading_system,
        system("A"), system(""), system("D", "developer"), user("u"), system("late"),
    )  # fmt: skip
    assert joined == [system("A\n\nD"), user("u"), system("late")]


def test_system_text_goes_in_front_of_the_first_turn_of_the_user() -> None:
    step = system_texts.system_into_user
    assert after(step, system("A"), system("B"), user("u")) == [user("A\n\nB\n\nu")]
    assert after(step, system("A"), said("a")) == [user("A"), said("a")]
    assert after(step, system("A")) == [user("A")]
    assert after(step, system(""), user("u")) == [user("u")]
    assert after(step, user("u"), system("late")) == [user("u"), system("late")]


def test_late_system_texts_stay_in_their_place() -> None:
    marked = "<system-reminder>\nL\n</system-reminder>"
    step = system_texts.fold_late_system
    start = [system("S"), user("u")]
    assert after(step, *start, system("L"), user("v")) == [*start, user(f"{marked}\n\nv")]
    assert after(step, *start, system("L"), said("a")) == [*start, user(marked), said("a")]
    assert after(step, *start, said("a"), system("L")) == [*start, said("a"), user(marked)]
    called = [*start, said("", call("1")), system("L", "developer"), result("1", "r")]
    assert after(step, *called)[-1] == result("1", f"{marked}\n\nr")
    assert after(step, *start, system("")) == start


def test_a_turn_of_the_user_comes_first() -> None:
    step = turns.leading_user
    assert after(step, said("a"), user("u")) == [user("."), said("a"), user("u")]
    assert after(step, system("S"), said("a")) == [system("S"), user("."), said("a")]
    assert after(step, system("S")) == [system("S"), user(".")]
    assert after(step, system("S"), user("u")) == [system("S"), user("u")]


def test_neighbours_of_one_role_are_merged() -> None:
    assert after(turns.merge_users, user("a"), user(""), user("b"), said("c")) == [
        user("a\n\nb"),
        said("c"),
    ]
    one, other = call("1"), call("2")
    assert after(turns.merge_assistants, said("a"), said("b", one), said("", other)) == [
        said("a\n\nb", one, other)
    ]
    thought = [said("a", reasoning_content="x"), said("b", reasoning_content="y")]
    assert after(turns.merge_assistants, *thought) == [said("a\n\nb", reasoning_content="x\n\ny")]
    # The text was said after the call.
    apart = [said("a", one), said("b")]
    assert after(turns.merge_assistants, *apart) == apart


def test_the_user_after_a_result_goes_into_it() -> None:
    messages = [said("", call("1")), result("1", "r"), user("u"), user("v")]
    assert after(turns.user_into_result, *messages)[1:] == [result("1", "r\n\nu\n\nv")]


def test_several_calls_become_one_at_a_time_each_with_its_result() -> None:
    one, two, three = call("1"), call("2"), call("3")
    messages = [
        said("text", one, two, three, reasoning_content="hm"),
        result("2", "r2"), result("1", "r1"), result("9", "of none"), user("u"),
    ]  # fmt: skip
    assert after(tool_calls.split_calls, *messages) == [
        said("text", one, reasoning_content="hm"), result("1", "r1"),
        said("", two), result("2", "r2"),
        said("", three),
        result("9", "of none"),
        user("u"),
    ]  # fmt: skip
    nameless = [said("", call(None), call(None)), result(None, "a"), result(None, "b")]
    assert [m["content"] for m in after(tool_calls.split_calls, *nameless)] == ["", "a", "", "b"]


def test_ids_of_calls_are_rewritten_in_call_and_result_alike() -> None:
    messages = [
        said("", call("call_0123456789abcdef"), call("abcdef123")),
        result("call_0123456789abcdef", "a"), result("abcdef123", "b"), result("gone", "c"),
    ]  # fmt: skip
    short = after(tool_calls.short_call_ids, *messages)
    one, other = (made["id"] for made in short[0]["tool_calls"])
    assert len(one) == 9
    assert one.isalnum()
    assert one.isascii()
    assert other == "abcdef123"
    assert [m["tool_call_id"] for m in short[1:3]] == [one, other]
    assert len(short[3]["tool_call_id"]) == 9
    assert after(tool_calls.short_call_ids, *messages) == short
    numbered = after(tool_calls.numbered_call_ids, *messages)
    assert [made["id"] for made in numbered[0]["tool_calls"]] == [
        "functions.look:0",
        "functions.look:1",
    ]
    assert [m["tool_call_id"] for m in numbered[1:3]] == ["functions.look:0", "functions.look:1"]


def test_calls_without_ids_are_matched_by_their_place() -> None:
    messages = [said("", call(None), call(None)), result(None, "a"), result(None, "b")]
    short = after(tool_calls.short_call_ids, *messages)
    ids = [made["id"] for made in short[0]["tool_calls"]]
    assert [m["tool_call_id"] for m in short[1:]] == ids
    assert len(set(ids)) == 2


def test_results_get_the_name_of_their_tool() -> None:
    messages = [said("", call("1", name="look"), call("2", name="walk")), result("1", "r")]
    assert after(tool_calls.name_results, *messages)[1]["name"] == "look"
    named = {**result("1", "r"), "name": "mine"}
    assert after(tool_calls.name_results, messages[0], named)[1]["name"] == "mine"


def test_text_beside_calls_comes_before_them() -> None:
    messages = [said("text", call("1"), reasoning_content="hm")]
    apart = after(tool_calls.text_before_calls, *messages)
    assert apart == [said("text"), said("", call("1"), reasoning_content="hm")]


NOT_OBJECTS = [
    '{"a":',
    "[1]",
    "null",
    '"x"',
    "not json",
    '{"a": NaN}',
    '{"a": 1e999}',
    '{"a": "\\ud800"}',
    '{"a":' * 100_000,
]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (None, {}),
        ("", {}),
        ("{}", {}),
        ('{"x": [1], "y": null}', {"x": [1], "y": None}),
        ('{"x": "\\u00e9"}', {"x": "é"}),
        ({"x": 1}, {"x": 1}),
        ([1, "é"], '[1, "é"]'),
        *((text, text) for text in NOT_OBJECTS),
    ],
)
def test_arguments_are_an_object_or_the_text_that_they_were(given: Any, read: Any) -> None:
    assert arguments.read_arguments(given) == read


def test_arguments_in_other_forms() -> None:
    messages = [said("", call("1", {"a": "é"}), call("2", '{"a":'))]
    (text,) = after(arguments.arguments_as_text, *messages)
    assert [c["function"]["arguments"] for c in text["tool_calls"]] == ['{"a": "é"}', '{"a":']
    (wrapped,) = after(arguments.wrap_unread_arguments, *messages)
    assert [c["function"]["arguments"] for c in wrapped["tool_calls"]] == [
        {"a": "é"},
        {"arguments": '{"a":'},
    ]


@pytest.mark.parametrize(
    "function",
    [
        {"name": "look"},
        {"name": "look", "description": None, "parameters": None},
        {"name": "look", "parameters": {}},
        {"name": "look", "parameters": {"properties": None}},
    ],
)
def test_tools_are_filled_and_null_is_absent(function: Message) -> None:
    tool = tool_fields.without_nulls({"type": "function", "function": function})
    assert "null" not in str(tool)
    assert "None" not in str(tool)
    filled = tool_fields.fill_tools(Conversation([], [tool])).tools
    assert filled is not None
    assert filled[0]["function"] == {
        "name": "look",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    }


def test_tools_calls_and_results_in_words() -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    conversation = tool_prompt.tools_in_words(Conversation([system("S"), user("u")], tools))
    assert conversation.tools is None
    assert conversation.messages[0]["content"].startswith("S\n\n# Tools")
    (called,) = after(tool_prompt.calls_in_words, said("text", call("1", {"a": 1})))
    assert called == said(
        'text\n<tool_call>\n{"name": "look", "arguments": {"a": 1}}\n</tool_call>'
    )
    assert after(tool_prompt.results_in_words, result("1", "r")) == [
        user("<tool_response>\nr\n</tool_response>")
    ]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_every_step_does_the_same_twice(step: Step) -> None:
    conversation = Conversation(
        [
            system("S"), system("T"), said("a"), user("u"), user("v"),
            said("b", call("call_1"), call("call_2", '{"a":'), reasoning_content="hm"),
            result("call_1", "r"), result("call_2", "t"), user("w"), system("L"),
        ],
        [{"type": "function", "function": {"name": "look"}}],
    )  # fmt: skip
    once = step.apply(conversation)
    assert step.apply(once) == once


def test_last_resorts_are_steps() -> None:
    assert set(LAST_RESORT) <= {step.name for step in STEPS}
    assert len({step.name for step in STEPS}) == len(STEPS)
