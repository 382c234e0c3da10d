"""Prompts are rendered here as the servers render them, and templates are asked what they take."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mlxctl.bench.scenarios import Dialect
from mlxctl.bench.tokens import ChatTokens
from tiny_models import DEFAULT_TEMPLATE, EOS_ID, TinyModels

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


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [({}, None, (EOS_ID,)), ({"eos_token_id": [3, 1]}, {"eos_token_id": 2}, (1, 2, 3, EOS_ID))],
)
def test_what_ends_an_answer(tiny_models: TinyModels, tmp_path: Path, config, generation, expected):
    folder = shutil.copytree(tiny_models.folder("llama"), tmp_path / "model")
    settings = json.loads((folder / "config.json").read_text())
    settings.pop("eos_token_id", None)
    (folder / "config.json").write_text(json.dumps(settings | config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    assert ChatTokens(str(folder)).end_tokens() == expected


@pytest.mark.parametrize("content", ['{"eos_token_id": ["x", 1]}', "[5.5]", "{"])
def test_a_file_that_names_no_ids_is_refused(tiny_models: TinyModels, tmp_path: Path, content):
    folder = shutil.copytree(tiny_models.folder("llama"), tmp_path / "model")
    tokens = ChatTokens(str(folder))
    (folder / "generation_config.json").write_text(content)
    with pytest.raises(ValueError, match=r"eos_token_id: expected token ids|Expecting"):
        tokens.end_tokens()


def test_a_folder_that_names_no_end(tiny_models: TinyModels, tmp_path: Path):
    folder = shutil.copytree(tiny_models.folder("llama"), tmp_path / "model")
    for name, key in (("config.json", "eos_token_id"), ("tokenizer_config.json", "eos_token")):
        settings = json.loads((folder / name).read_text())
        settings.pop(key, None)
        (folder / name).write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="names no token that ends"):
        ChatTokens(str(folder)).end_tokens()


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
