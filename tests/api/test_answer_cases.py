"""Answers that were read wrongly once: each is one of a kind, cut at every place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_answer_reader import (
    HERMES_CALL,
    PARIS,
    QWEN_CODER,
    THINK,
    TOOLS,
    call,
    cuts,
    mlx_lm,
    read,
    reader,
)

from mlxceld.api.reader import Reading
from mlxceld.models.calls import HERMES, LLAMA

CODER = mlx_lm("qwen3_coder")


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


# Reasoning.


@pytest.mark.parametrize(
    ("text", "reasoning", "said"),
    [
        (
            "<think>r</think>Qwen opens with `<think>` and then reasons.",
            "r",
            "Qwen opens with `<think>` and then reasons.",
        ),
        ("It is <think>x</think>.", "", "It is <think>x</think>."),
        ("<think>a</think>b<think>c</think>d", "a", "b<think>c</think>d"),
        ("\n<think>a</think>\n\nb", "a", "b"),
    ],
)
def test_reasoning_comes_once_and_first(text: str, reasoning: str, said: str) -> None:
    for pieces in cuts(text):
        answer = read(Reading(thinking=THINK, calls=HERMES, tools=TOOLS), pieces)
        assert (answer.reasoning, answer.text) == (reasoning, said)


def test_a_prompt_that_opened_reasoning_has_had_it() -> None:
    for pieces in cuts("r</think>\n\nSo `<think>` is a tag."):
        answer = read(Reading(thinking=THINK, in_reasoning=True), pieces)
        assert (answer.reasoning, answer.text) == ("r", "So `<think>` is a tag.")


# White space.


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"x {HERMES_CALL} mid {HERMES_CALL}", "x  mid "),
        (f"x\n{HERMES_CALL}\nmid", "x\nmid"),
        (f"x\n\n{HERMES_CALL}\n{HERMES_CALL}\n", "x"),
        (f"{HERMES_CALL}\n\nDone.", "Done."),
        (f"\n{HERMES_CALL}\n", ""),
    ],
)
def test_white_space_between_text_and_calls(text: str, said: str) -> None:
    for pieces in cuts(text):
        answer = read(Reading(calls=HERMES, tools=TOOLS), pieces)
        assert answer.text == said
        assert len(answer.calls or ()) == text.count("<tool_call>")


# What ends a call.


@pytest.mark.parametrize(
    "value", ["a </tool_call> b", '"</tool_call>"', "\\</tool_call>", "</tool_call>" * 3]
)
def test_the_closing_marker_within_a_string(value: str) -> None:
    body = json.dumps({"name": "get_weather", "arguments": {"city": value}})
    for form in (HERMES, mlx_lm("json_tools")):
        for pieces in cuts(f"<tool_call>\n{body}\n</tool_call>\nThere."):
            answer = read(Reading(calls=form, tools=TOOLS), pieces)
            assert answer.calls == [call(arguments={"city": value})]
            assert answer.text == "There."


def test_the_closing_marker_within_a_value_of_qwen_coder() -> None:
    text = QWEN_CODER.replace("Paris", "a </tool_call> b")
    for pieces in cuts(text):
        answer = read(Reading(calls=CODER, tools=TOOLS), pieces)
        assert answer.calls == [call(arguments={"city": "a </tool_call> b", "days": 2})]


def test_a_call_that_is_never_closed_does_not_swallow_the_next() -> None:
    broken = '<tool_call>{"name": "get_weather, "arguments": {}}</tool_call>'
    for pieces in cuts(f"{broken}\n{HERMES_CALL}"):
        answer = read(Reading(calls=HERMES, tools=TOOLS), pieces)
        assert answer.calls == [call()]
        assert answer.text == broken


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("form", [HERMES, mlx_lm("json_tools")])
def test_what_is_no_json_is_no_call(form: Any, constant: str) -> None:
    text = f'<tool_call>{{"name": "get_weather", "arguments": {{"a": {constant}}}}}</tool_call>'
    for pieces in cuts(text):
        answer = read(Reading(calls=form, tools=TOOLS), pieces)
        assert answer.calls == []
        assert answer.text == text


# Bare text between tags.


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
        ({"type": ["string", "null"]}, "123", "123"),
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, "5", "5"),
        ({"type": "string", "enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"const": "7"}, "7", "7"),
        ({"type": "integer", "nullable": True}, "null", None),
        ({"type": "integer"}, "many", "many"),
        ({"type": "number"}, "2.5", 2.5),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "boolean"}, "True", True),
        ({"type": "object"}, "{'a': 1}", {"a": 1}),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"$ref": "#/$defs/n"}, "5", 5),
        ({"oneOf": [{"type": "array"}, {"type": "string"}]}, "a, b", "a, b"),
        ({}, "5", "5"),
        ({}, '{"a": 1}', {"a": 1}),
    ],
)
def test_text_is_typed_by_the_schema(schema: Any, text: str, value: Any) -> None:
    offered = tool("f", x=schema)
    offered["function"]["parameters"]["$defs"] = {"n": {"type": "integer"}}
    written = {
        "qwen3_coder": f"<tool_call><function=f>\n<parameter=x>\n{text}\n</parameter>\n</function></tool_call>",
        "glm47": f"<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>",
        "minimax_m2": f'<minimax:tool_call><invoke name="f"><parameter name="x">{text}</parameter></invoke></minimax:tool_call>',
    }
    for form, answer in written.items():
        found = read(Reading(calls=mlx_lm(form), tools=[offered]), [answer])
        assert found.calls is not None, form
        assert [json.loads(one.arguments) for one in found.calls] == [{"x": value}], form


@pytest.mark.parametrize(
    "text",
    [
        QWEN_CODER.replace("\n</parameter>\n</function>", "\n</function>"),
        QWEN_CODER.replace("Paris\n</parameter>\n", "Paris\n"),
        QWEN_CODER.replace("</function>\n", ""),
        QWEN_CODER.replace("\n</parameter>\n</function>", ""),
    ],
)
def test_a_missing_closing_tag_loses_no_value(text: str) -> None:
    for pieces in cuts(text):
        answer = read(Reading(calls=CODER, tools=TOOLS), pieces)
        assert answer.calls == [call(arguments=PARIS)]


# Forced calls.


def test_a_forced_call_cut_before_its_name_is_nothing() -> None:
    whole = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
    for end in range(len('{"name": "get_weather", "arguments":') + 1):
        answer = read(Reading(calls=HERMES, tools=TOOLS, forced=True), list(whole[:end]))
        assert (answer.text, answer.calls) == ("", []), whole[:end]


def test_a_forced_call_cut_in_its_arguments_is_no_whole_call() -> None:
    whole = '{"name": "get_weather", "arguments": {"city": "Paris"}'
    for end in range(len('{"name": "get_weather", "arguments": {'), len(whole)):
        answer = read(Reading(calls=HERMES, tools=TOOLS, forced=True), list(whole[:end]))
        assert (answer.text, answer.calls) == ("", []), whole[:end]


# Plain objects as calls.


@pytest.mark.parametrize(
    "text",
    [
        '{"city": "Paris"}',
        "{ not JSON at all",
        "{1: 2}",
        '{"name": "Ada", "age": 36}',
        '{"name": 5}',
        '{"nam": 1}',
    ],
)
def test_an_object_that_cannot_be_a_call_is_let_go_at_once(text: str) -> None:
    taker = reader(Reading(calls=LLAMA, tools=TOOLS))
    shown = [len(taker.push(character)) for character in text + " and then more text"]
    # Long before the end.
    assert any(shown[: len(text) + 1])
    for pieces in cuts(text):
        answer = read(Reading(calls=LLAMA, tools=TOOLS), pieces)
        assert (answer.text, answer.calls) == (text, [])


# gpt-oss.

HARMONY = Reading(harmony=True, calls=HERMES, tools=TOOLS)


@pytest.mark.parametrize(
    ("opened", "text", "reasoning", "said"),
    [
        ("assistant<|channel|>final<|message|>The answer is ", "42.<|return|>", "", "42."),
        ("assistant<|channel|>final<|message|>The answer is ", "42.", "", "42."),
        (
            "assistant<|channel|>analysis<|message|>Hm, ",
            "so.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
            "so.",
            "Yes.",
        ),
        ("assistant", "<|channel|>final<|message|>Yes.", "", "Yes."),
        ("assistant<|channel|>final", "<|message|>Yes.", "", "Yes."),
        ("assistant", "Hello there.", "", "Hello there."),
        ("", "Hello there.", "", "Hello there."),
        ("assistant", "as it is.<|return|>", "", "as it is."),
        ("assistant", "<|channel|>final Hello.", "", "Hello."),
        ("assistant", "<|channel|>analysis<|message|>a<|end|>Hello.", "a", "Hello."),
        ("assistant", "<|channel|>final<|message|>a<|message|>b<|constrain|>c", "", "abc"),
        ("assistant", "<|channel|>fin", "", ""),
        ("assistant", "<|channel|>analysis", "", ""),
    ],
)
def test_heads_of_gpt_oss(opened: str, text: str, reasoning: str, said: str) -> None:
    reading = Reading(harmony=True, calls=HERMES, tools=TOOLS, opened=opened)
    for pieces in cuts(text):
        answer = read(reading, pieces)
        assert (answer.reasoning, answer.text, answer.calls) == (reasoning, said, [])


def test_a_call_of_gpt_oss_cut_anywhere_shows_no_marker() -> None:
    text = (
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Paris", "days": 2}<|call|>'
    )
    names = ("<|channel|>", "<|constrain|>", "<|message|>", "<|call|>")
    tokens = [text]
    for name in names:
        tokens = [part for one in tokens for part in _kept(one, name)]
    # Markers are single tokens: a limit cuts between them, or within other text.
    ends = {0}
    for token in tokens:
        ends |= {
            max(ends) + n for n in ([len(token)] if token in names else range(1, len(token) + 1))
        }
    for end in sorted(ends):
        answer = read(HARMONY, list(text[:end]))
        assert "<|" not in answer.text, text[:end]
        assert answer.calls in ([], [call()])


def _kept(text: str, name: str) -> list[str]:
    parts = text.split(name)
    found = [parts[0]]
    for part in parts[1:]:
        found += [name, part]
    return [one for one in found if one]


# Every form, cut anywhere.

FORMS = [
    ("json_tools", HERMES_CALL),
    ("qwen3_coder", QWEN_CODER),
    (
        "glm47",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
    ),
    ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}'),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        "minimax_m2",
        '<minimax:tool_call><invoke name="get_weather"><parameter name="city">Paris</parameter></invoke></minimax:tool_call>',
    ),
    (
        "longcat",
        "<longcat_tool_call>get_weather\n<longcat_arg_key>city</longcat_arg_key>\n<longcat_arg_value>Paris</longcat_arg_value>\n</longcat_tool_call>",
    ),
    ("minicpm5", '<function name="get_weather"><param name="city">Paris</param></function>'),
    ("pythonic", '[get_weather(city="Paris")]'),
    (
        "function_gemma",
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>",
    ),
]


@pytest.mark.parametrize(("name", "written"), FORMS)
def test_every_length_is_read_without_an_exception_and_streamed_as_whole(
    name: str, written: str
) -> None:
    form = mlx_lm(name)
    reading = Reading(calls=form, tools=TOOLS, thinking=THINK)
    text = f"<think>Hm.</think>I look: {written} and `{form.start}` is a marker."
    for end in range(len(text) + 1):
        whole = read(reading, [text[:end]])
        assert read(reading, list(text[:end])) == whole
        for one in whole.calls or ():
            json.loads(one.arguments, parse_constant=pytest.fail)


PIECES = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<function=get_weather>",
        "</function>",
        "<parameter=city>",
        "</parameter>",
        '{"name": "get_weather", "arguments": {"city": "',
        '"}}',
        "\n",
        " ",
        "text",
        '"',
        "\\",
        "{",
        "}",
        "[ARGS]",
        "[TOOL_CALLS]",
        "<|python_tag|>",
        "NaN",
    ]
)


@given(
    st.lists(PIECES, max_size=25),
    st.sampled_from([HERMES, CODER, LLAMA, mlx_lm("mistral")]),
    st.booleans(),
)
def test_any_text_is_streamed_as_whole(pieces: list[str], form: Any, thinking: bool) -> None:
    reading = Reading(calls=form, tools=TOOLS, thinking=THINK if thinking else None)
    whole = read(reading, ["".join(pieces)])
    assert read(reading, pieces) == whole
    assert read(reading, list("".join(pieces))) == whole


HARMONY_PIECES = st.sampled_from(
    [
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
        "<|constrain|>",
        "assistant",
        "analysis",
        "final",
        "commentary",
        " to=functions.get_weather",
        "json",
        "{}",
        " ",
        "text",
        "a",
    ]
)


@given(
    st.lists(HARMONY_PIECES, max_size=25),
    st.sampled_from(["", "assistant", "assistant<|channel|>final<|message|>x"]),
)
def test_any_series_of_channel_markers_is_streamed_as_whole(pieces: list[str], opened: str) -> None:
    reading = Reading(harmony=True, calls=HERMES, tools=TOOLS, opened=opened)
    whole = read(reading, ["".join(pieces)])
    assert read(reading, pieces) == whole
    assert "<|message|>" not in whole.text + whole.reasoning
    assert "<|channel|>" not in whole.text + whole.reasoning


def test_a_long_call_costs_what_it_is_long() -> None:
    """Work is counted in pieces that are joined, not in time."""
    taker = reader(Reading(calls=HERMES, tools=TOOLS))
    taker.push("<tool_call>")
    for _ in range(20_000):
        assert taker.push('{"a":1} ') == []
    # Held apart until the end can have come.
    assert len(taker._held._pieces) > 19_000
