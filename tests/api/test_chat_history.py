"""Chat messages in the forms that real clients send them back in."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_harness import ScriptedEngine, delta, error_of, finished, open_api, say
from mlxceld.api.errors import ApiError
from mlxceld.api.notes import Notes
from mlxceld.api.openai.history import messages_of
from mlxceld.api.openai.schemas import ChatRequest
from mlxceld.api.validation import validate
from mlxceld.config import Settings

CHAT = "/v1/chat/completions"
HELLO = {"role": "user", "content": "Hi"}
RESULT = {"role": "tool", "tool_call_id": "call_0", "content": "rain"}

Told = tuple[Any, ScriptedEngine]


@pytest.fixture
async def told(scripted: ScriptedEngine, settings: Callable[..., Settings]) -> AsyncIterator[Told]:
    scripted.on_submit = lambda stream: say(stream, delta("ok"), finished())
    async with open_api(scripted, settings()) as client:
        yield client, scripted


async def prompt(told: Told, messages: list[Any], **more: Any) -> str:
    client, engine = told
    response = await client.post(CHAT, json={"messages": messages, **more})
    assert response.status == 200, await response.text()
    return engine.text.decode(engine.requests[-1].tokens, skip_special_tokens=False)


def converted(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return messages_of(validate(ChatRequest, {"messages": list(messages)}).messages, Notes())


def call(**function: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"function": {"name": "f", **function}}]}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, "{}"),
        ({"arguments": None}, "{}"),
        ({"arguments": ""}, "{}"),
        ({"arguments": {"b": 1, "a": "ö"}}, '{"b": 1, "a": "ö"}'),
        ({"arguments": '{"b": 1, "a": "ö"}'}, '{"b": 1, "a": "ö"}'),
    ],
)
async def test_arguments_of_a_call(told: Told, given: dict[str, Any], shown: str) -> None:
    text = await prompt(told, [HELLO, call(**given), {**RESULT, "content": "x"}])
    assert f'<tool_call>{{"name": "f", "arguments": {shown}}}</tool_call>' in text


async def test_a_call_has_its_place_in_the_prompt_whatever_its_frame(told: Told) -> None:
    function = {"name": "f", "arguments": "{}"}
    frames: list[dict[str, Any]] = [
        {"id": "call_0", "type": "function"},
        {"id": "call_0"},
        {"type": "function"},
        {"id": None, "type": None, "index": 0},
    ]
    texts = {
        await prompt(
            told,
            [HELLO, {"role": "assistant", "tool_calls": [{**frame, "function": function}]}, RESULT],
        )
        for frame in frames
    }
    assert len(texts) == 1


def test_calls_and_results_without_ids_find_each_other() -> None:
    two = {"role": "assistant", "tool_calls": [{"function": {"name": n}} for n in ("f", "g")]}
    messages = converted(
        HELLO,
        two,
        {"role": "tool", "content": "of f"},
        {"role": "tool", "content": "of g"},
        {"role": "assistant", "function_call": {"name": "h", "arguments": "{}"}},
        {"role": "function", "name": "h", "content": None},
    )
    assert [one["id"] for one in messages[1]["tool_calls"]] == ["call_0", "call_1"]
    assert [messages[i]["tool_call_id"] for i in (2, 3)] == ["call_0", "call_1"]
    assert messages[4]["tool_calls"] == [
        {"id": "call_2", "type": "function", "function": {"name": "h", "arguments": "{}"}}
    ]
    assert messages[5] == {
        "role": "tool",
        "content": "",
        "name": "h",
        "tool_call_id": "call_2",
    }


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        ([{"text": "no type"}], "no type"),
        (["bare", {"type": "text", "text": "part"}], "bare\npart"),
        ([{"type": "text", "text": "a"}, {"type": "output_text", "text": ""}], "a\n"),
        ([], ""),
        (None, ""),
    ],
)
@pytest.mark.parametrize("role", ["user", "assistant", "system", "tool"])
async def test_content(told: Told, role: str, content: Any, text: str) -> None:
    message = {"role": role, "content": content}
    shown = await prompt(told, [HELLO, message, HELLO])
    assert f"<|im_start|>{role}\n{text}<|im_end|>\n" in shown


async def test_refusals_are_text(told: Told) -> None:
    part = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot."}]}
    field = {"role": "assistant", "content": None, "refusal": "I cannot."}
    for message in (part, field):
        assert "assistant\nI cannot.<|im_end|>" in await prompt(told, [HELLO, message, HELLO])


async def test_the_legacy_history_of_functions(told: Told) -> None:
    legacy = [
        HELLO,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "rain"},
    ]
    today = [HELLO, call(arguments="{}"), RESULT]
    assert await prompt(told, legacy) == await prompt(told, today)


@pytest.mark.parametrize(
    "thought",
    [
        {"reasoning_content": "Hm."},
        {"reasoning": "Hm."},
        {"thinking": "Hm."},
        {"reasoning_content": "Hm.", "reasoning": "other"},
        {"reasoning_content": None, "reasoning": "Hm."},
        {"reasoning": {"effort": "low"}, "thinking": "Hm."},
        {"reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]},
        {
            "reasoning_details": [
                {"type": "reasoning.encrypted", "data": "x"},
                {"type": "reasoning.summary", "summary": "Hm."},
            ]
        },
    ],
)
def test_what_was_thought_is_taken_from_any_field(thought: dict[str, Any]) -> None:
    (message,) = converted({"role": "assistant", "content": "So.", **thought})
    assert message == {"role": "assistant", "content": "So.", "reasoning_content": "Hm."}


def test_what_was_thought_is_taken_from_parts() -> None:
    text = {"type": "text", "text": "So."}
    for part in (
        {"type": "reasoning", "text": "Hm."},
        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
    ):
        (message,) = converted({"role": "assistant", "content": [part, text]})
        assert message == {"role": "assistant", "content": [text], "reasoning_content": "Hm."}


def test_a_users_reasoning_field_is_no_thought() -> None:
    assert converted({**HELLO, "reasoning": "x"}) == [HELLO]


def test_a_custom_call_of_the_history_is_one_of_a_function() -> None:
    custom = {"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls"}}
    (message,) = converted({"role": "assistant", "tool_calls": [custom]})
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"input": "ls"}


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"role": "user"}, "messages[1].content"),
        ({"role": "assistant"}, "messages[1].content"),
        ({"role": "assistant", "audio": {"id": "a"}, "content": "x"}, "messages[1].audio"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": [{"type": "thinking"}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": [{}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": [3]}, "messages[1].content[0]"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[1].tool_calls[0].function"),
        (
            {"role": "assistant", "tool_calls": [{"type": "custom"}]},
            "messages[1].tool_calls[0].custom",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]},
            "messages[1].tool_calls[0].function.arguments",
        ),
    ],
)
async def test_what_cannot_be_taken_is_named(
    told: Told, message: dict[str, Any], named: str
) -> None:
    client, _ = told
    error = await error_of(await client.post(CHAT, json={"messages": [HELLO, message]}), 400)
    assert error["param"] == named
    assert error["message"].startswith(f"{named} is ")


TEXTS = st.none() | st.text(max_size=3)
PARTS = st.text(max_size=3) | st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["text", "refusal", "thinking", "reasoning", "image_url"]),
        "text": TEXTS,
        "refusal": TEXTS,
        "thinking": TEXTS,
    },
)
FUNCTIONS = st.fixed_dictionaries(
    {"name": st.sampled_from("fg")},
    optional={"arguments": TEXTS | st.dictionaries(st.sampled_from("ab"), st.integers())},
)
CALLS = st.fixed_dictionaries(
    {}, optional={"id": TEXTS, "type": st.just("function"), "function": FUNCTIONS}
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "function"])},
    optional={
        "content": TEXTS | st.lists(PARTS, max_size=2),
        "name": st.sampled_from("fg"),
        "tool_calls": st.none() | st.lists(CALLS, max_size=2),
        "function_call": FUNCTIONS,
        "tool_call_id": TEXTS,
        "reasoning": TEXTS | st.integers(),
        "reasoning_details": st.none() | st.lists(st.dictionaries(st.just("text"), TEXTS)),
    },
)


def outcome(*messages: dict[str, Any]) -> list[dict[str, Any]] | str:
    """The conversation, or what its refusal names."""
    try:
        return converted(*messages)
    except ApiError as error:
        return error.param or ""


@given(st.lists(MESSAGES, min_size=1, max_size=4), MESSAGES)
def test_any_history_is_taken_or_refused_by_name_and_keeps_its_beginning(
    messages: list[dict[str, Any]], more: dict[str, Any]
) -> None:
    made, longer = outcome(*messages), outcome(*messages, more)
    if isinstance(made, str) or isinstance(longer, str):
        assert str(longer).startswith("messages[")
        return
    assert longer[: len(made)] == made
    for message in made:
        assert message["role"] in ("system", "user", "assistant", "tool")
        assert isinstance(message["content"], str | list)
        for one in message.get("tool_calls", ()):
            assert one["id"]
            assert isinstance(one["function"]["arguments"], str | dict)


@pytest.mark.parametrize("role", ["tool", "function"])
def test_an_image_in_a_tools_result_is_left_out_with_a_note(role: str) -> None:
    parts = [{"type": "text", "text": "Here:"}, {"type": "image_url", "image_url": {"url": "u"}}]
    message = {"role": role, "name": "look", "tool_call_id": "c", "content": parts}
    notes = Notes()
    [told] = messages_of(validate(ChatRequest, {"messages": [message]}).messages, notes)
    texts = [part["text"] for part in told["content"]]
    assert texts == ["Here:", "[image left out: this model reads text]"]
    assert notes.texts == [
        "messages[0].content[1]: image in a tool's result (this model reads text)"
    ]
