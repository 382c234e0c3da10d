"""Prompts are rendered here as the servers render them, and templates are asked what they take."""

from __future__ import annotations

import pytest

from mlxctl.bench.scenarios import Dialect
from mlxctl.bench.tokens import ChatTokens
from tiny_models import DEFAULT_TEMPLATE, TinyModels

PLAIN = "{% for m in messages %}{{ m['role'] + ':' + m['content'] }}{% endfor %}"
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}" + PLAIN


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (DEFAULT_TEMPLATE, Dialect(tools=True, system=True)),
        (PLAIN, Dialect(tools=False, system=True)),
        (NO_SYSTEM, Dialect(tools=False, system=False)),
    ],
)
def test_what_a_template_has_a_place_for(tiny_models: TinyModels, template, expected):
    folder = tiny_models.folder("llama", chat_template=template)
    assert ChatTokens(str(folder)).dialect() == expected


def test_without_a_template_nothing_can_be_asked(tiny_models: TinyModels):
    folder = tiny_models.folder("llama", chat_template=None)
    with pytest.raises(ValueError, match="no chat template"):
        ChatTokens(str(folder)).dialect()


def test_a_conversation_with_calls_is_rendered_as_mlxceld_does(tiny_models: TinyModels, tiny_model):
    call = {"id": "c", "type": "function", "function": {"name": "ls", "arguments": '{"p": "x"}'}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "So:", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "nothing"},
    ]
    tools = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}]
    mine = ChatTokens(str(tiny_models.folder("llama"))).render(messages, tools)
    assert mine == tiny_model("llama").text.render_chat(messages, tools=tools).tokens
    assert ChatTokens(str(tiny_models.folder("llama"))).count("abc") == 3
