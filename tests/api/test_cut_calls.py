"""Calls that the limit has cut, and those whose arguments are no JSON: text, never half a call."""

from __future__ import annotations

import json

import pytest
from test_answer_cases import CODER
from test_answer_reader import HERMES_CALL, PARIS, QWEN_CODER, TOOLS, call, mlx_lm, read

from mlxceld.api.reader import Reading
from mlxceld.models.calls import HERMES

TAGGED = [
    ("json_tools", HERMES_CALL),
    ("qwen3_coder", QWEN_CODER),
    (
        "glm47",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    ),
    (
        "longcat",
        "<longcat_tool_call>get_weather\n<longcat_arg_key>city</longcat_arg_key>\n"
        "<longcat_arg_value>Paris</longcat_arg_value>\n<longcat_arg_key>days</longcat_arg_key>\n"
        "<longcat_arg_value>2</longcat_arg_value>\n</longcat_tool_call>",
    ),
    (
        "minimax_m2",
        '<minimax:tool_call><invoke name="get_weather"><parameter name="city">Paris</parameter>'
        '<parameter name="days">2</parameter></invoke></minimax:tool_call>',
    ),
    (
        "minicpm5",
        '<function name="get_weather"><param name="city">Paris</param>'
        '<param name="days">2</param></function>',
    ),
    (
        "muse_spark",
        '<atem:function_calls><atem:invoke name="get_weather"><atem:parameter name="city">Paris'
        '</atem:parameter><atem:parameter name="days">2</atem:parameter></atem:invoke>'
        "</atem:function_calls>",
    ),
    (
        "kimi_k3",
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="integer"<|sep|>2<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>",
    ),
    ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 2}'),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Paris", "days": 2}<|tool_call_end|>'
        "<|tool_calls_section_end|>",
    ),
    (
        "pythonic",
        '<|tool_call_start|>[get_weather(city="Paris", days=2)]<|tool_call_end|>',
    ),
    (
        "function_gemma",
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:2}"
        "<end_function_call>",
    ),
    ("gemma4", '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>'),
]


@pytest.mark.parametrize(("name", "written"), TAGGED)
def test_a_call_cut_anywhere_is_the_whole_call_or_text(name: str, written: str) -> None:
    reading = Reading(calls=mlx_lm(name), tools=TOOLS)
    whole = read(reading, [written]).calls or []
    assert [(one.name, json.loads(one.arguments)) for one in whole] == [("get_weather", PARIS)]
    for end in range(len(written)):
        answer = read(reading, [written[:end]])
        assert answer.calls in ([], whole), written[:end]
        if not answer.calls:
            assert answer.text == written[:end]
        assert read(reading, list(written[:end])) == answer


@pytest.mark.parametrize("value", ["{1, 2}", 'b"x"', "{(1, 2): 3}", "1j", "{'a': {1}}"])
def test_values_that_json_does_not_have_are_no_call(value: str) -> None:
    text = f"<|tool_call_start|>[get_weather(city={value})]<|tool_call_end|>"
    answer = read(Reading(calls=mlx_lm("pythonic"), tools=TOOLS), [text])
    assert (answer.text, answer.calls) == (text, [])


def test_half_a_surrogate_pair_is_no_character() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "\\ud83d"}}</tool_call>'
    answer = read(Reading(calls=HERMES, tools=TOOLS), [text])
    assert answer.calls == [call(arguments={"city": "\ufffd"})]


def test_a_missing_closing_tag_before_the_end_marker_still_loses_no_value() -> None:
    text = QWEN_CODER.replace("\n</parameter>\n</function>", "")
    assert read(Reading(calls=CODER, tools=TOOLS), [text]).calls == [call()]
