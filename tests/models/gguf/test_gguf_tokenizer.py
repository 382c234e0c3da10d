from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from mlxceld.models.errors import ModelError
from mlxceld.models.gguf.reader import GgufFile
from mlxceld.models.gguf.tokenizer import GgufVocabulary
from tiny_gguf import llama_metadata, write_gguf

WORDS = {
    "gpt-2": ["It", "'s", "Ġ2024", "?", "ĊĊ"],
    "smollm": ["It", "'s", "Ġ", "2", "0", "2", "4", "?", "ĊĊ"],
    "llama-bpe": ["It", "'s", "Ġ", "202", "4", "?ĊĊ"],
    "qwen2": ["It", "'s", "Ġ", "2", "0", "2", "4", "?ĊĊ"],
}


def vocabulary(path: Path, **changes: Any) -> GgufVocabulary:
    return GgufVocabulary(GgufFile(write_gguf(path / "v.gguf", llama_metadata(**changes), {})))


def build(path: Path, **changes: Any) -> Tokenizer:
    return vocabulary(path, **changes).build()


@pytest.mark.parametrize("name", WORDS)
def test_text_is_cut_into_words_as_the_file_says(tmp_path: Path, name: str) -> None:
    tokenizer = build(tmp_path, tokenizer__ggml__pre=name)
    words = tokenizer.pre_tokenizer.pre_tokenize_str("It's 2024?\n\n")
    assert [word for word, _ in words] == WORDS[name]


def test_merges_apply_in_their_order(tmp_path: Path) -> None:
    tokens = [*"abc", "ab", "bc", "abc"]
    changes = {
        "tokenizer__ggml__tokens": tokens,
        "tokenizer__ggml__merges": ["a b", "ab c", "b c"],
        "tokenizer__ggml__token_type": np.ones(6, np.int32),
        "tokenizer__ggml__bos_token_id": 0,
        "tokenizer__ggml__eos_token_id": 0,
        "tokenizer__ggml__padding_token_id": 0,
    }
    tokenizer = build(tmp_path, **changes)
    assert tokenizer.encode("abcbc").tokens == ["abc", "bc"]


def test_control_tokens_are_special_and_user_defined_ones_are_text(tmp_path: Path) -> None:
    types = np.ones(320, np.int32)
    types[258], types[300] = 3, 4
    tokenizer = build(tmp_path, tokenizer__ggml__token_type=types)
    ids = tokenizer.encode("a<|im_end|>Ġw300b").ids
    assert ids == [ord("a"), 258, 300, ord("b")]
    assert tokenizer.decode(ids).endswith("w300b")
    assert "<|im_end|>" not in tokenizer.decode(ids)


def test_bos_is_added_where_the_file_says_so(tmp_path: Path) -> None:
    assert build(tmp_path).encode("a").ids == [97]
    added = build(tmp_path, tokenizer__ggml__add_bos_token=True)
    assert added.encode("a").ids == [256, 97]
    both = build(tmp_path, tokenizer__ggml__add_bos_token=True, tokenizer__ggml__add_eos_token=True)
    assert both.encode("a").ids == [256, 97, 258]


def test_token_ids_of_the_config(tmp_path: Path) -> None:
    # ChatML's turn end is the end already.
    assert vocabulary(tmp_path).token_ids() == {
        "bos_token_id": 256,
        "pad_token_id": 259,
        "eos_token_id": 258,
    }
    other = vocabulary(tmp_path, tokenizer__ggml__eos_token_id=256)
    assert other.token_ids()["eos_token_id"] == [256, 258]


@given(text=st.text(max_size=40))
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    tokenizer = build(tmp_path_factory.mktemp("v"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_written_files_load_in_transformers(tmp_path: Path) -> None:
    vocabulary(tmp_path).write(tmp_path, 512)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.bos_token, loaded.eos_token, loaded.pad_token) == (
        "<|endoftext|>",
        "<|im_end|>",
        "<|pad|>",
    )
    assert loaded.encode("Grüße 42") == build(tmp_path).encode("Grüße 42").ids
    assert loaded.chat_template.startswith("{%- if tools %}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer__ggml__model": "llama"}, "tokenizer 'llama' cannot be imported"),
        ({"tokenizer__ggml__pre": "deepseek-llm"}, "pre-tokenizer 'deepseek-llm' cannot"),
        ({"tokenizer__ggml__pre": None}, "pre-tokenizer None cannot"),
        ({"tokenizer__ggml__tokens": None}, "without tokens or merges"),
        ({"tokenizer__ggml__merges": ["ab"]}, "'ab' is not a merge of two tokens"),
        ({"tokenizer__ggml__merges": ["x nowhere"]}, "tokens and merges do not match"),
        ({"tokenizer__ggml__eos_token_id": 999}, "eos_token_id 999 is not in the vocabulary"),
        ({"tokenizer__ggml__tokens": ["a", "a"]}, "occurs twice|is not in the vocabulary"),
    ],
)
def test_what_cannot_be_imported_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        vocabulary(tmp_path, **changes).write(tmp_path, 512)
