"""The tokens that end an answer: from every file that names one, and from the template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine_harness import load_tiny
from mlxceld.models.end_tokens import named_end_ids
from tiny_models import SPECIAL_TOKENS, write_tiny_model

END_OF_TEXT, START, END, _ = range(256, 256 + len(SPECIAL_TOKENS))


def edit(path: Path, **changes: Any) -> None:
    read = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**read, **changes}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model whose files all name the end of a text, and whose template ends turns otherwise."""
    written = write_tiny_model(tmp_path / "llama", "llama")
    edit(written / "config.json", eos_token_id=END_OF_TEXT)
    edit(written / "tokenizer_config.json", eos_token="<|endoftext|>")
    return written


def test_the_templates_own_end_counts(folder: Path) -> None:
    assert load_tiny(folder).text.eos_ids == {END_OF_TEXT, END}


def test_generation_config_adds_ids_and_0_is_one(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=[0, START])
    assert load_tiny(folder).text.eos_ids == {END_OF_TEXT, END, START, 0}
    edit(folder / "generation_config.json", eos_token_id=0)
    assert load_tiny(folder).text.eos_ids == {END_OF_TEXT, END, 0}


def test_an_id_beyond_the_vocabulary_is_none(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=[100_000, -1])
    assert load_tiny(folder).text.eos_ids == {END_OF_TEXT, END}


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\n' }}{% endfor %}",
        "{{ raise_exception('no') }}",
    ],
)
def test_a_template_without_an_end_adds_none(tmp_path: Path, template: str) -> None:
    written = write_tiny_model(tmp_path / "llama", "llama", chat_template=template)
    edit(written / "config.json", eos_token_id=END_OF_TEXT)
    edit(written / "tokenizer_config.json", eos_token="<|endoftext|>")
    assert load_tiny(written).text.eos_ids == {END_OF_TEXT}


@pytest.mark.parametrize(
    "content", ["", "[", "[1]", '{"eos_token_id": true}', '{"eos_token_id": "x"}']
)
def test_files_that_name_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "generation_config.json").write_text(content)
    assert named_end_ids(tmp_path, {"eos_token_id": 5}) == {5}
