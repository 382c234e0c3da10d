"""How a model's answers are to be read, from its template and vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from mlx_lm.utils import load_tokenizer
from tokenizers import AddedToken

from mlxceld.models.text import TextCodec
from tiny_models import tiny_tokenizer, write_tiny_tokenizer

Make = Callable[..., TextCodec]
CHATML = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def build(*special: str, template: str = CHATML, plain: tuple[str, ...] = ()) -> TextCodec:
        write_tiny_tokenizer(tmp_path, chat_template=template)
        tokenizer = tiny_tokenizer()
        tokenizer.add_special_tokens([AddedToken(n, special=True) for n in special])
        tokenizer.add_tokens([AddedToken(n, normalized=False) for n in plain])
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "config.json").write_text('{"model_type": "llama"}')
        return TextCodec(load_tokenizer(tmp_path), 400)

    return build


def ids(codec: TextCodec, *names: str) -> set[int]:
    found = {token for name in names for token in codec.encode(name, add_special_tokens=False)}
    assert len(found) == len(names)
    return found


def test_a_model_of_plain_text(make: Make) -> None:
    form = make().output_format
    assert (form.thinking, form.calls, form.harmony) == (None, None, False)
    assert form.markers == frozenset()


def test_special_markers_are_shown_where_calls_need_them(make: Make) -> None:
    codec = make("[TOOL_CALLS]", "[ARGS]", "[INST]", template=CHATML + "{# [TOOL_CALLS] #}")
    form = codec.output_format
    assert form.calls is not None
    assert (form.calls.start, form.calls.end) == ("[TOOL_CALLS]", "")
    assert form.markers == ids(codec, "[TOOL_CALLS]", "[ARGS]")
    tokens = codec.encode("[TOOL_CALLS]ls[ARGS]{}[INST]", add_special_tokens=False)
    shown, hidden = codec.detokenizer([], form.markers), codec.detokenizer([])
    assert "".join(shown.add(token) for token in tokens) == "[TOOL_CALLS]ls[ARGS]{}"
    assert "".join(hidden.add(token) for token in tokens) == "ls{}"


def test_llama_and_deepseek_by_their_vocabulary(make: Make) -> None:
    llama = make("<|python_tag|>").output_format
    assert llama.calls is not None
    assert (llama.calls.name, llama.calls.bare) == ("llama", True)
    begin = "<｜tool▁calls▁begin｜>"  # noqa: RUF001
    deepseek = make(begin).output_format
    assert deepseek.calls is not None
    assert deepseek.calls.name == "deepseek"


def test_reasoning_that_is_marked(make: Make) -> None:
    codec = make(plain=("<think>", "</think>"))
    form = codec.output_format
    assert form.thinking == ("<think>", "</think>")
    assert set(form.answer_opens) == ids(codec, "</think>")
    assert form.markers == frozenset()  # they are no special tokens and show anyway


def test_channels(make: Make) -> None:
    codec = make("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|call|>", "<|return|>")
    form = codec.output_format
    assert form.harmony
    assert codec.decode(form.answer_opens, skip_special_tokens=False) == (
        "<|channel|>final<|message|>"
    )
    assert ids(codec, "<|channel|>", "<|message|>", "<|call|>") <= form.markers


def test_a_call_ends_an_answer_of_channels_and_the_end_of_a_message_does_not(make: Make) -> None:
    codec = make("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|call|>", "<|return|>")
    assert ids(codec, "<|call|>", "<|return|>") <= codec.eos_ids
    assert not ids(codec, "<|end|>") & codec.eos_ids


def test_whether_tools_are_rendered_is_found_by_rendering(make: Make) -> None:
    assert not make().renders_tools
    shows = CHATML + "{% if tools %}{{ tools | tojson }}{% endif %}"
    assert make(template=shows).renders_tools
    picky = "{% if messages | length > 1 %}{{ raise_exception('one only') }}{% endif %}" + shows
    assert make(template=picky).renders_tools
