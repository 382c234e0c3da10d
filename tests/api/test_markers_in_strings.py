"""Calls whose arguments hold the markers that end calls, in each form that has strings."""

from __future__ import annotations

import json

import pytest
from test_answer_reader import PARIS, TOOLS, call, cuts, mlx_lm, read

from mlxceld.api.parts import Call
from mlxceld.api.reader import Reading
from mlxceld.models.calls import DEEPSEEK, HERMES, LLAMA, CallFormat

CHANNELS = Reading(calls=HERMES, tools=TOOLS, harmony=True)
SEP = "<\uff5ctool\u2581sep\uff5c>"
CALL, CALL_END = "<\uff5ctool\u2581call\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>"
TEXTS = [
    "{end} is how it ends",
    'a "quoted" {end} and {end}',
    "\\{end}",
    "{start}{end}",
    "{end}" * 200,
]


def arguments(form: CallFormat, text: str) -> dict[str, str]:
    return {"city": text.format(start=form.start, end=form.end)}


@pytest.mark.parametrize("text", TEXTS)
def test_json_between_markers(text: str) -> None:
    given = arguments(HERMES, text)
    written = json.dumps({"name": "get_weather", "arguments": given})
    for pieces in cuts(f"<tool_call>\n{written}\n</tool_call>"):
        assert read(Reading(calls=HERMES, tools=TOOLS), pieces).calls == [call(arguments=given)]


@pytest.mark.parametrize("text", [*TEXTS, CALL_END, f"{CALL_END}{{end}}"])
@pytest.mark.parametrize("fenced", [True, False])
def test_deepseek(text: str, *, fenced: bool) -> None:
    given = arguments(DEEPSEEK, text)
    body = json.dumps(given)
    if fenced:
        body = f"get_weather\n```json\n{body}\n```"
    one = f"{CALL}{'function' if fenced else 'get_weather'}{SEP}{body}{CALL_END}"
    written = f"{DEEPSEEK.start}{one}\n{one}{DEEPSEEK.end}"
    for pieces in cuts(written):
        answer = read(Reading(calls=DEEPSEEK, tools=TOOLS), pieces)
        assert answer.calls == [call(arguments=given), call(arguments=given, number=2)]


@pytest.mark.parametrize("marker", ["<|end|>", "<|call|>", "<|return|>"])
@pytest.mark.parametrize("text", ["{} in it", 'a "quoted" {}{}', "{}"])
def test_gpt_oss(marker: str, text: str) -> None:
    given = {"city": text.replace("{}", marker)}
    written = (
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        f"{json.dumps(given)}<|call|>"
    )
    for pieces in cuts(written):
        assert read(CHANNELS, pieces).calls == [call(arguments=given)]


def test_gpt_oss_whose_string_has_no_end() -> None:
    written = (
        '<|channel|>commentary to=functions.get_weather<|message|>{"city": "Par<|end|>'
        "<|start|>assistant<|channel|>final<|message|>Sorry.<|return|>"
    )
    for pieces in cuts(written):
        answer = read(CHANNELS, pieces)
        assert (answer.text, answer.calls) == ('{"city": "ParSorry.', [])


@pytest.mark.parametrize("prefix", ["functions.", ""])
def test_gpt_oss_calls_what_is_offered_without_the_prefix_too(prefix: str) -> None:
    head = f"<|channel|>commentary to={prefix}get_weather <|constrain|>json<|message|>"
    for pieces in cuts(f"{head}{json.dumps(PARIS)}<|call|>"):
        assert read(CHANNELS, pieces).calls == [call()]


def test_gpt_oss_own_tools_are_no_calls() -> None:
    for pieces in cuts("<|channel|>commentary to=browser.search<|message|>{}<|call|>"):
        assert read(CHANNELS, pieces).calls == []


@pytest.mark.parametrize(
    ("name", "written", "given"),
    [
        (
            "function_gemma",
            "<start_function_call>call:get_weather{{city:<escape>{}<escape>,days:2}}<end_function_call>",
            "a } brace, <end_function_call> and {call:x{",
        ),
        (
            "gemma4",
            '<|tool_call>call:get_weather{{city:<|"|>{}<|"|>,days:2}}<tool_call|>',
            "a } brace, <tool_call|> and {call:x{",
        ),
        (
            "muse_spark",
            '<atem:function_calls><atem:invoke name="get_weather"><atem:parameter name="city">{}'
            '</atem:parameter><atem:parameter name="days">2</atem:parameter></atem:invoke>'
            "</atem:function_calls>",
            'a </atem:invoke> and </atem:function_calls><atem:invoke name="x">',
        ),
    ],
)
def test_other_strings(name: str, written: str, given: str) -> None:
    wanted = [call(arguments={"city": given, "days": 2})]
    for pieces in cuts(written.format(given)):
        assert read(Reading(calls=mlx_lm(name), tools=TOOLS), pieces).calls == wanted


def test_gemma_nests() -> None:
    inner = '{a:<|"|>x<|"|>,b:[1,{c:true}],d:null,e:words here}'
    written = f"<|tool_call>call:f{{o:{inner}}}call:g{{}}<tool_call|>"
    objects = {"o": {"a": "x", "b": [1, {"c": True}], "d": None, "e": "words here"}}
    for pieces in cuts(written):
        answer = read(Reading(calls=mlx_lm("gemma4"), tools=TOOLS), pieces)
        assert answer.calls == [call("f", objects), call("g", {}, 2)]


@pytest.mark.parametrize(("written", "city"), [("5", "5"), ('"5"', "5"), (' "a" b', ' "a" b')])
def test_muse_types_by_the_schema(written: str, city: str) -> None:
    text = (
        '<atem:function_calls><atem:invoke name="get_weather"><atem:parameter name="city">'
        f'{written}</atem:parameter><atem:parameter name="days">5</atem:parameter></atem:invoke>'
        "</atem:function_calls>"
    )
    for pieces in cuts(text):
        answer = read(Reading(calls=mlx_lm("muse_spark"), tools=TOOLS), pieces)
        assert answer.calls == [call(arguments={"city": city, "days": 5})]


def test_llamas_long_object_is_held_and_its_pieces_are_joined_once() -> None:
    city = "x" * 5000
    written = json.dumps({"name": "get_weather", "parameters": {"city": city}})
    answer = read(Reading(calls=LLAMA, tools=TOOLS), list(written))
    assert answer.calls == [Call("call_1", "get_weather", json.dumps({"city": city}))]
