"""How much a model is to think, brought to the variables of its chat template."""

from __future__ import annotations

from typing import Any

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from chat_templates import CASES, CHATML, GPT_OSS, QWEN3, codec_of
from mlxceld.models.reasoning import (
    EFFORTS,
    ReasoningRequest,
    reasoning_kwargs,
    renderer_variables,
    template_variables,
)
from mlxceld.models.text import TextCodec

ALL = ("enable_thinking", "thinking", "reasoning_effort", "thinking_budget")
USER = [{"role": "user", "content": "hi"}]


def off(effort: str) -> ReasoningRequest:
    return ReasoningRequest(effort=effort)


@pytest.mark.parametrize(
    ("request_", "switch", "level", "budget"),
    [
        (None, None, None, None),
        (ReasoningRequest(), None, None, None),
        (off("none"), False, "low", 0),
        (off("minimal"), True, "low", 512),
        (off("low"), True, "low", 1024),
        (off("medium"), True, "medium", 4096),
        (off("high"), True, "high", 16384),
        (off("xhigh"), True, "high", None),
        (off("max"), True, "high", None),
        (ReasoningRequest(enabled=True), True, None, None),
        (ReasoningRequest(enabled=False), False, "low", 0),
        (ReasoningRequest(enabled=True, budget_tokens=2000), True, None, 2000),
        (ReasoningRequest(effort="high", budget_tokens=2000), True, "high", 2000),
        (ReasoningRequest(effort="high", enabled=False), False, "low", 0),
        (ReasoningRequest(effort="none", enabled=True), True, None, None),
    ],
)
def test_what_each_wish_becomes(
    request_: ReasoningRequest | None, switch: bool | None, level: str | None, budget: int | None
) -> None:
    expected = {
        "enable_thinking": switch,
        "thinking": switch,
        "reasoning_effort": level,
        "thinking_budget": budget,
    }
    found = reasoning_kwargs(request_, ALL)
    assert found == {name: value for name, value in expected.items() if value is not None}
    for name in ALL:
        only = {name: found[name]} if name in found else {}
        assert reasoning_kwargs(request_, [name]) == only
    assert reasoning_kwargs(request_, ["messages"]) == {}


def test_what_the_request_gives_by_name_wins() -> None:
    given = {"enable_thinking": True, "style": "short"}
    found = reasoning_kwargs(off("none"), ["enable_thinking", "reasoning_effort"], given)
    assert found == {"enable_thinking": True, "style": "short", "reasoning_effort": "low"}


@pytest.mark.parametrize("effort", EFFORTS)
def test_every_effort_has_its_line_in_channel_messages(effort: str) -> None:
    codec = codec_of(GPT_OSS)
    arguments = reasoning_kwargs(off(effort), codec.template_variables)
    text = codec.render_chat(USER, template_kwargs=arguments).text
    level = {"medium": "medium", "high": "high", "xhigh": "high", "max": "high"}.get(effort, "low")
    assert f"Reasoning: {level}<|end|>" in text


@pytest.mark.parametrize("source", [QWEN3, CASES["thinking"]])
def test_a_template_that_can_switch_it_off_does(source: str) -> None:
    codec = codec_of(source)
    for request, closed in ((off("none"), True), (off("high"), False)):
        arguments = reasoning_kwargs(request, codec.template_variables)
        text = codec.render_chat(USER, template_kwargs=arguments).text
        assert text.endswith("</think>\n\n") is closed


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (CHATML, set()),
        (QWEN3, {"enable_thinking"}),
        ("{% if not thinking is defined %}{% set thinking = false %}{% endif %}", {"thinking"}),
        (
            "{%- if reasoning_effort is not defined %}{%- set reasoning_effort = 'medium' %}"
            "{%- endif %}{{ reasoning_effort }}",
            {"reasoning_effort"},
        ),
        ("{% macro f() %}{{ reasoning_effort }}{% endmacro %}{{ f() }}", {"reasoning_effort"}),
        ("{% generation %}{{ thinking_budget }}{% endgeneration %}", {"thinking_budget"}),
        ("{% for thinking in [1] %}{{ thinking }}{% endfor %}", set()),
        ("{{ 'enable_thinking' }} {{ messages[0].thinking }}", set()),
        ("{% if %}", set()),
    ],
)
def test_the_variables_that_a_template_reads(source: str, names: set[str]) -> None:
    assert template_variables(source) & set(ALL) == names


def by_name(messages: Any, *, tools: Any = None, thinking: bool = False, **_: Any) -> str:
    return f"{messages}{tools}{thinking}"


def among_others(messages: Any, **options: Any) -> str:
    return f"{messages}{options}"


@pytest.mark.parametrize(
    ("renderer", "names"),
    [(by_name, {"enable_thinking", "thinking"}), (among_others, {"enable_thinking"})],
)
def test_the_variables_of_a_template_in_python(renderer: Any, names: set[str]) -> None:
    assert renderer_variables(renderer) == names


@pytest.mark.parametrize(("effort", "end"), [("none", "</think>"), ("high", "<think>")])
def test_mlx_lms_own_renderer_is_fitted_and_switched(effort: str, end: str) -> None:
    from mlx_lm.chat_templates import deepseek_v32

    inner = codec_of(CHATML)._encoder._tokenizer._tokenizer
    wrapper = TokenizerWrapper(inner, chat_template=deepseek_v32.apply_chat_template)
    codec = TextCodec(wrapper, 1024)
    arguments = reasoning_kwargs(off(effort), codec.template_variables)
    assert codec.render_chat(USER, template_kwargs=arguments).text.endswith(end)
    steps = codec.template_steps
    assert {"arguments_as_text", "wrap_unread_arguments", "system_for_tools"} <= steps.keys()
    function = {"name": "look", "arguments": '{"a":'}
    call = {"id": "1", "type": "function", "function": function}
    messages = [
        *USER,
        {"role": "assistant", "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "1", "content": "r"},
    ]
    text = codec.render_chat(messages, template_kwargs=arguments).text
    assert text.index("hi") < text.index('{"a":') < text.index("r</result>")
