"""Models' real output forms, cut at awkward places, read into the parts of an answer."""

from __future__ import annotations

import importlib
import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from mlxceld.api.harmony import HarmonyReader
from mlxceld.api.parts import Answer, Call, Part
from mlxceld.api.reader import AnswerReader, MarkedReader, Reading
from mlxceld.models.calls import DEEPSEEK, HERMES, LLAMA, CallFormat, from_parser

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    },
    {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}},
]
THINK = ("<think>", "</think>")
PARIS = {"city": "Paris", "days": 2}


def mlx_lm(name: str) -> CallFormat:
    module = importlib.import_module(f"mlx_lm.tool_parsers.{name}")
    return from_parser(name, module.tool_call_start, module.tool_call_end, module.parse_tool_call)


def ids() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"call_{next(numbers)}"


def reader(reading: Reading) -> AnswerReader:
    kind = HarmonyReader if reading.harmony else MarkedReader
    return kind(reading, ids())


def cuts(text: str) -> list[list[str]]:
    """Whole, character by character, and in twenty random ways."""
    ways = [[text], list(text)]
    for seed in range(20):
        rng = random.Random(seed)
        places = sorted({0, len(text), *(rng.randrange(len(text)) for _ in range(len(text) // 5))})
        ways.append([text[a:b] for a, b in itertools.pairwise(places)])
    return ways


def read(reading: Reading, pieces: list[str]) -> Answer:
    taker = reader(reading)
    parts: list[Part] = [part for piece in pieces for part in taker.push(piece)]
    parts += taker.finish()
    answer = Answer.of(parts)
    # One that is cut has been begun.
    assert taker.called >= bool(answer.calls)
    return answer


def call(name: str = "get_weather", arguments: Any = PARIS, number: int = 1) -> Call:
    return Call(f"call_{number}", name, json.dumps(arguments, ensure_ascii=False))


HERMES_CALL = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'
)
QWEN_CODER = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
)
GLM = (
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
)
DEEPSEEK_V3 = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
    '```json\n{"city": "Paris", "days": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)
DEEPSEEK_V31 = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
    '{"city": "Paris", "days": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)
LLAMA_TAG = '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}'
LLAMA_BARE = '{"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}'
MISTRAL_LIST = '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]'
MISTRAL_ARGS = '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 2}'
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    '<|tool_call_argument_begin|>{"city": "Paris", "days": 2}<|tool_call_end|>'
    "<|tool_calls_section_end|>"
)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        pytest.param(HERMES, HERMES_CALL, id="hermes"),
        pytest.param(mlx_lm("json_tools"), HERMES_CALL, id="qwen"),
        pytest.param(mlx_lm("qwen3_coder"), QWEN_CODER, id="qwen-coder"),
        pytest.param(mlx_lm("glm47"), GLM, id="glm"),
        pytest.param(mlx_lm("mistral"), MISTRAL_LIST, id="mistral-list"),
        pytest.param(mlx_lm("mistral"), MISTRAL_ARGS, id="mistral-args"),
        pytest.param(DEEPSEEK, DEEPSEEK_V3, id="deepseek-v3"),
        pytest.param(DEEPSEEK, DEEPSEEK_V31, id="deepseek-v3.1"),
        pytest.param(LLAMA, LLAMA_TAG, id="llama-tag"),
        pytest.param(LLAMA, LLAMA_BARE, id="llama-bare"),
    ],
)
def test_a_call_in_every_models_form(form: CallFormat, text: str) -> None:
    for pieces in cuts(text):
        answer = read(Reading(calls=form, tools=TOOLS), pieces)
        assert answer.calls == [call()], pieces
        assert answer.text == ""


def test_a_models_own_id_is_kept() -> None:
    for pieces in cuts(KIMI):
        answer = read(Reading(calls=mlx_lm("kimi_k2"), tools=TOOLS), pieces)
        assert answer.calls == [Call("functions.get_weather:0", "get_weather", json.dumps(PARIS))]


def test_text_before_calls_two_calls_and_reasoning() -> None:
    second = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    text = f"<think>\nHm, a < b.\n</think>\n\nI will look.\n{HERMES_CALL}\n{second}\n"
    for pieces in cuts(text):
        answer = read(Reading(thinking=THINK, calls=HERMES, tools=TOOLS), pieces)
        assert answer.reasoning == "Hm, a < b."
        assert answer.text == "I will look."
        assert answer.calls == [call(), call("get_time", {}, 2)]


def test_one_call_alone_where_calls_may_not_be_parallel() -> None:
    second = '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
    answer = read(Reading(calls=HERMES, tools=TOOLS, parallel=False), [HERMES_CALL + second])
    assert answer.calls == [call()]


def test_a_prompt_that_ends_inside_reasoning() -> None:
    for pieces in cuts("I wonder\nwhy.\n</think>\n\nBecause."):
        answer = read(Reading(thinking=THINK, in_reasoning=True), pieces)
        assert (answer.reasoning, answer.text) == ("I wonder\nwhy.", "Because.")


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": \n</tool_call> sorry',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "get_weather", "argum',
    ],
)
def test_a_malformed_call_comes_as_text(text: str) -> None:
    for pieces in cuts(text):
        answer = read(Reading(calls=HERMES, tools=TOOLS), pieces)
        assert answer.calls == []
        assert answer.text == text


def test_text_that_only_looks_like_a_beginning_is_not_held_back_for_ever() -> None:
    for pieces in cuts("a <tool_ca b <thin c < \n"):
        answer = read(Reading(thinking=THINK, calls=HERMES, tools=TOOLS), pieces)
        assert answer.text == "a <tool_ca b <thin c < \n"


def test_json_that_calls_no_known_tool_is_llamas_answer() -> None:
    for pieces in cuts('{"name": "Ada", "parameters": {}}'):
        answer = read(Reading(calls=LLAMA, tools=TOOLS), pieces)
        assert answer.calls == []
        assert answer.text == '{"name": "Ada", "parameters": {}}'


def test_calls_stay_text_where_none_were_offered() -> None:
    assert read(Reading(), list(HERMES_CALL)).text == HERMES_CALL


def test_a_forced_call_is_streamed_as_it_comes() -> None:
    text = '{"name": "get_weather", "arguments": {"city": "Pa{}ris", "days": 2}}'
    for pieces in cuts(text):
        answer = read(Reading(calls=HERMES, tools=TOOLS, forced=True), pieces)
        assert answer.calls == [call(arguments={"city": "Pa{}ris", "days": 2})]
    taker = reader(Reading(calls=HERMES, tools=TOOLS, forced=True))
    assert taker.push('{"name": "get_weather", "arguments": {"ci')[1:] != []


HARMONY = (
    "<|channel|>analysis<|message|>They ask for the weather.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json"
    '<|message|>{"city": "Paris", "days": 2}<|call|>'
)


def test_gpt_oss_channels() -> None:
    reading = Reading(harmony=True, calls=HERMES, tools=TOOLS)
    for pieces in cuts(HARMONY):
        answer = read(reading, pieces)
        assert answer.reasoning == "They ask for the weather."
        assert answer.text == "Let me look."
        assert answer.calls == [call()]
    for pieces in cuts(
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
        "<|channel|>final<|message|>It rains.<|return|>"
    ):
        answer = read(reading, pieces)
        assert (answer.reasoning, answer.text, answer.calls) == ("Hm.", "It rains.", [])


def test_a_malformed_call_of_gpt_oss_comes_as_text() -> None:
    text = "<|channel|>commentary to=functions.get_weather<|message|>{broken<|call|>"
    answer = read(Reading(harmony=True, calls=HERMES, tools=TOOLS), list(text))
    assert answer.calls == []
    assert "{broken" in answer.text
