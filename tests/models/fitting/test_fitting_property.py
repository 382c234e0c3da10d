"""Conversations as clients send them, over every template: all is shown, and the prefix stays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chat_templates import CASES, TEMPLATES, codec_of, tool
from mlxceld.models.boundaries import common_prefix
from mlxceld.models.chat import prepare
from mlxceld.models.fitting.steps import apply
from mlxceld.models.probing import FUSED
from mlxceld.models.text import TextCodec

Message = dict[str, Any]

SOURCES = {name: template.source for name, template in TEMPLATES.items()} | CASES
CODECS = {name: codec_of(source) for name, source in SOURCES.items()}
REWRITES = {name for name, template in TEMPLATES.items() if template.rewrites}
LEAVES_OUT_TEXT_BESIDE_CALLS = {"mistral"}
SYSTEM_IN_LAST_TURN = {"mistral"}


class Marks:
    """Texts that can each be found in a rendering."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._numbers = itertools.count(1)

    def text(self) -> str:
        around = self._draw(st.sampled_from(["", "\n\nyes", " é.", "\n1. One\n", " {}"]))
        return f"q{next(self._numbers)}q{around}"

    def mark(self) -> str:
        return f"q{next(self._numbers)}q"


def mark_of(text: str) -> str:
    return text[: text.index("q", 1) + 1]


@st.composite
def conversations(draw: st.DrawFn) -> tuple[str, list[Message], list[Message] | None]:
    marks = Marks(draw)
    calls = draw(st.booleans())
    messages: list[Message] = []

    def maybe_system() -> None:
        if draw(st.integers(0, 3)) == 0:
            role = draw(st.sampled_from(["system", "developer"]))
            messages.append({"role": role, "content": marks.text()})

    def say(role: str) -> None:
        for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
            messages.append({"role": role, "content": marks.text()})

    for _ in range(draw(st.integers(0, 2))):
        role = draw(st.sampled_from(["system", "developer"]))
        messages.append({"role": role, "content": marks.text()})
    if draw(st.integers(0, 4)) == 0:
        say("assistant")
    for _ in range(draw(st.integers(1, 3))):
        maybe_system()
        say("user")
        maybe_system()
        for _ in range(draw(st.integers(0, 2)) if calls else 0):
            _calls(draw, marks, messages)
            maybe_system()
            if draw(st.integers(0, 3)) == 0:
                say("user")
        say("assistant")
    say("user")
    name = draw(st.sampled_from(sorted(SOURCES)))
    return name, messages, [tool("look")] if calls and draw(st.booleans()) else None


def _calls(draw: st.DrawFn, marks: Marks, messages: list[Message]) -> None:
    count = draw(st.sampled_from([1, 1, 2, 3]))
    calls, results = [], []
    turn: Message = {"role": "assistant", "content": draw(st.sampled_from([None, ""]))}
    if draw(st.booleans()):
        turn["content"] = marks.text()
    if draw(st.integers(0, 3)) == 0:
        turn["reasoning_content"] = "hm"
    for number in range(count):
        given = draw(st.sampled_from(["call_", "toolu-01_", "x", "functions.look:"]))
        given = f"{given}{len(messages)}{number}" if draw(st.booleans()) else f"abcdefg{number}9"
        mark = marks.mark()
        arguments: Any = draw(
            st.sampled_from(
                [
                    {"a": mark},
                    f'{{"a": "{mark}"}}',
                    f'{{"a": "{mark}',
                    f'["{mark}"]',
                    f'"{mark}"',
                    "null",
                    "",
                    None,
                ]
            )
        )
        function = {"name": "look", "arguments": arguments}
        calls.append({"id": given, "type": "function", "function": function})
        results.append({"role": "tool", "tool_call_id": given, "content": marks.text()})
    messages += [{**turn, "tool_calls": calls}, *results]


def chains(name: str, messages: list[Message]) -> Iterator[list[str]]:
    """What has to be found in a rendering, in this order."""
    said = [
        mark_of(message["content"])
        for index, message in enumerate(messages)
        if message["role"] != "tool"
        and message["content"]
        and not (message.get("tool_calls") and name in LEAVES_OUT_TEXT_BESIDE_CALLS)
        and not (
            name in SYSTEM_IN_LAST_TURN
            and message["role"] in ("system", "developer")
            and all(m["role"] in ("system", "developer") for m in messages[:index])
        )
    ]
    yield said
    for index, message in enumerate(messages):
        before = [mark_of(m["content"]) for m in messages[:index] if m["role"] == "user"][-1:]
        after = [mark_of(m["content"]) for m in messages[index:] if m["role"] == "user"][:1]
        for number, one in enumerate(message.get("tool_calls") or ()):
            result = mark_of(messages[index + 1 + number]["content"])
            arguments = str(one["function"]["arguments"])
            shown = [mark_of(arguments[arguments.index("q") :])] if "q" in arguments else []
            yield [*before, *shown, result, *after]


def ends(messages: list[Message]) -> list[int]:
    """Where prompts end: before each reply, and at the end."""
    replies = [
        index
        for index in range(1, len(messages))
        if messages[index]["role"] == "assistant" and messages[index - 1]["role"] != "assistant"
    ]
    return [*replies, len(messages)]


@settings(max_examples=300)
@given(conversations())
def test_every_conversation_is_shown_whole_and_in_order(
    drawn: tuple[str, list[Message], list[Message] | None],
) -> None:
    name, messages, tools = drawn
    text = CODECS[name].render_chat(messages, tools=tools).text
    for chain in chains(name, messages):
        end = 0
        for mark in chain:
            end = text.find(mark, end)
            assert end >= 0, (name, mark, chain, text)


@settings(max_examples=300)
@given(conversations())
def test_the_next_turn_is_fitted_with_the_same_beginning(
    drawn: tuple[str, list[Message], list[Message] | None],
) -> None:
    name, messages, tools = drawn
    fitting = CODECS[name]._chat.fitting
    whole = apply(fitting.steps, prepare(messages, tools)).messages
    for end in ends(messages):
        turn = apply(fitting.steps, prepare(messages[:end], tools)).messages
        assert whole[: len(turn)] == turn, name


@settings(max_examples=120)
@given(conversations())
def test_the_next_prompt_begins_with_the_tokens_of_this_one(
    drawn: tuple[str, list[Message], list[Message] | None],
) -> None:
    name, messages, tools = drawn
    codec = CODECS[name]
    for end, later in itertools.pairwise(ends(messages)):
        prompt = codec.render_chat(messages[:end], tools=tools, with_boundaries=True)
        after = codec.render_chat(messages[:later], tools=tools).tokens
        follows = next((m["role"] for m in messages[end:] if m["role"] != "assistant"), "user")
        kinds = {"head", "completion" if follows == "tool" else "boundary"}
        for mark in prompt.boundaries:
            if mark.kind in kinds:
                assert after[: mark.tokens] == prompt.tokens[: mark.tokens], (name, mark)
        if name in REWRITES or (tools and name == "call_ids_of_nine"):
            # That one writes the tools after the last turn.
            continue
        history = codec.render_chat(messages[:end], tools=tools, add_generation_prompt=False)
        assert common_prefix(history.tokens, after) >= len(history.tokens) - FUSED, name


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_steps_change_nothing_where_there_is_nothing_to_mend(name: str) -> None:
    codec: TextCodec = CODECS[name]
    plain = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    assert apply(codec._chat.fitting.steps, prepare(plain)).messages == plain
