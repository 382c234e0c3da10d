"""Text that only mentions markers, calls with their own ids, and what long calls cost."""

from __future__ import annotations

import json

import pytest
from test_answer_reader import PARIS, THINK, TOOLS, call, cuts, mlx_lm, read, reader

import mlxceld.api.harmony as harmony_module
from mlxceld.api.parts import Call
from mlxceld.api.reader import Reading
from mlxceld.models.calls import HERMES

CHANNELS = Reading(harmony=True, calls=HERMES, tools=TOOLS)


@pytest.mark.parametrize("inner", ["hello there", "tags", "get_weather_now", ""])
def test_words_between_glms_markers_are_no_call(inner: str) -> None:
    text = f"Calls stand between <tool_call>{inner}</tool_call>."
    for pieces in cuts(text):
        answer = read(Reading(calls=mlx_lm("glm47"), tools=TOOLS), pieces)
        assert (answer.text, answer.calls) == (text, [])


def test_glms_call_of_a_tool_without_arguments() -> None:
    for pieces in cuts("<tool_call>get_time\n</tool_call>"):
        answer = read(Reading(calls=mlx_lm("glm47"), tools=TOOLS), pieces)
        assert answer.calls == [call("get_time", {})]


def test_mistrals_own_id_is_kept_and_is_not_the_name() -> None:
    text = f"[TOOL_CALLS]get_weather[CALL_ID]abc123def[ARGS]{json.dumps(PARIS)}"
    for pieces in cuts(text):
        answer = read(Reading(calls=mlx_lm("mistral"), tools=TOOLS), pieces)
        assert answer.calls == [Call("abc123def", "get_weather", json.dumps(PARIS))]


def test_text_behind_mistrals_call_is_not_lost() -> None:
    text = f"[TOOL_CALLS]get_weather[ARGS]{json.dumps(PARIS)} and then words"
    for pieces in cuts(text):
        answer = read(Reading(calls=mlx_lm("mistral"), tools=TOOLS), pieces)
        assert (answer.text, answer.calls) == (text, [])


def test_line_breaks_before_what_is_no_call_stay() -> None:
    text = "As in\n\n<tool_call>nonsense</tool_call>\nand so on."
    for pieces in cuts(text):
        assert read(Reading(calls=HERMES, tools=TOOLS), pieces).text == text


def test_reasoning_that_prompt_and_model_both_open() -> None:
    for pieces in cuts("<think>\nWhy?\n</think>\n\nBecause."):
        answer = read(Reading(thinking=THINK, in_reasoning=True), pieces)
        assert (answer.reasoning, answer.text) == ("Why?", "Because.")
    for text in ("<thin", "<think>"):
        for pieces in cuts(text):
            read(Reading(thinking=THINK, in_reasoning=True), pieces)


def test_words_that_look_like_a_recipient_are_said() -> None:
    for pieces in cuts("to=5 is what you mean"):
        assert read(CHANNELS, pieces).text == "to=5 is what you mean"


def test_a_long_call_of_gpt_oss_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is counted in characters that are searched, not in time."""
    searched = 0
    find = harmony_module.first_marker

    def counted(text: str, markers: tuple[str, ...]) -> tuple[int, str]:
        nonlocal searched
        searched += len(text)
        return find(text, markers)

    monkeypatch.setattr(harmony_module, "first_marker", counted)
    body = json.dumps({"city": "x" * 20_000})
    text = f"<|channel|>commentary to=functions.get_weather<|message|>{body}<|call|>"
    taker = reader(CHANNELS)
    parts = [part for at in range(0, len(text), 4) for part in taker.push(text[at : at + 4])]
    assert len([*parts, *taker.finish()]) == 2
    assert searched < 20 * len(text)
