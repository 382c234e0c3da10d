"""A GGUF file's vocabulary as tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from mlxceld.models.errors import ModelError, shown
from mlxceld.models.gguf.reader import GgufFile

_CONTROL, _USER_DEFINED = 3, 4

_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")

_PRE_TOKENIZERS = {
    "gpt-2": "gpt2",
    "smollm": "digits",
    "starcoder": "digits",
    "refact": "digits",
    "llama-bpe": "llama3",
    "llama-v3": "llama3",
    "llama3": "llama3",
    "qwen2": "qwen2",
}
"""How text is cut into words, by the name that the file gives."""

_SPECIAL = ("bos", "eos", "eot", "unknown", "padding")

_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>")
"""Tokens that end a turn where the chat template uses them, whatever the file's own end is."""


class GgufVocabulary:
    """The tokenizer that a GGUF file describes."""

    def __init__(self, file: GgufFile) -> None:
        """Raises ModelError if its kind is not supported, naming the kind."""
        self._path = file.path
        self._metadata: Mapping[str, Any] = file.metadata
        model = self._get("model")
        if model != "gpt2":
            raise ModelError(
                f"{file.path}: tokenizer {shown(model)} cannot be imported, only 'gpt2'"
                " (byte-level)"
            )
        name = self._get("pre")
        if not isinstance(name, str) or name not in _PRE_TOKENIZERS:
            raise ModelError(
                f"{file.path}: pre-tokenizer {shown(name)} cannot be imported; known are"
                f" {', '.join(_PRE_TOKENIZERS)}"
            )
        self._words = _PRE_TOKENIZERS[name]
        self.tokens = self._texts("tokens")
        self._merges = [self._pair(merge) for merge in self._texts("merges")]
        # Found here, so that what is wrong with them is found before anything is written.
        self._ids = {name: self._read_special(name) for name in _SPECIAL}
        self._adds = {name: self._flag(f"add_{name}_token") for name in ("bos", "eos")}
        self._types = self._token_types()
        template = self._get("chat_template", "tokenizer.chat_template")
        if template is not None and not isinstance(template, str):
            raise ModelError(f"{file.path}: tokenizer.chat_template is no text")
        self.chat_template: str | None = template

    def token_ids(self) -> dict[str, Any]:
        """The bos, eos and pad ids for config.json; eos is a list where several tokens end."""
        ids: dict[str, Any] = {}
        for key, name in (("bos", "bos"), ("pad", "padding")):
            if (token := self._special(name)) is not None:
                ids[f"{key}_token_id"] = token
        ends = [self._special("eos"), self._special("eot"), *self._template_ends()]
        unique = list(dict.fromkeys(token for token in ends if token is not None))
        if unique:
            ids["eos_token_id"] = unique[0] if len(unique) == 1 else unique
        return ids

    def write(self, folder: Path, context_length: int) -> None:
        """Write the two files into ``folder``."""
        self.build().save(str(folder / "tokenizer.json"))
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": context_length,
        }
        for key, name in (
            ("bos", "bos"),
            ("eos", "eos"),
            ("unk", "unknown"),
            ("pad", "padding"),
        ):
            if (token := self._special(name)) is not None:
                settings[f"{key}_token"] = self.tokens[token]
        if self.chat_template:
            settings["chat_template"] = self.chat_template
        (folder / "tokenizer_config.json").write_text(
            json.dumps(settings, indent=2, ensure_ascii=False), encoding="utf-8"
        )

    def build(self) -> Tokenizer:
        """The tokenizer itself. Raises ModelError if tokens and merges do not fit together."""
        vocabulary = {token: number for number, token in enumerate(self.tokens)}
        if len(vocabulary) != len(self.tokens):
            raise ModelError(f"{self._path}: the same token occurs twice in the vocabulary")
        try:
            tokenizer = Tokenizer(
                models.BPE(
                    vocab=vocabulary,
                    merges=self._merges,
                    # llama3's words that are tokens stay whole, whatever the merges say.
                    ignore_merges=self._words == "llama3",
                )
            )
        except Exception as error:
            raise ModelError(f"{self._path}: tokens and merges do not match: {error}") from error
        if self._words == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = _pre_tokenizer(self._words)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_tokens(
            [
                AddedToken(token, special=kind == _CONTROL, normalized=False)
                for token, kind in zip(self.tokens, self._types, strict=False)
                if kind in (_CONTROL, _USER_DEFINED)
            ]
        )
        self._add_post_processor(tokenizer)
        return tokenizer

    def _add_post_processor(self, tokenizer: Tokenizer) -> None:
        """Put bos and eos around plain texts, where the file says so."""
        bos = self._special("bos") if self._adds["bos"] else None
        eos = self._special("eos") if self._adds["eos"] else None
        if bos is None and eos is None:
            return
        names = {token: self.tokens[token] for token in (bos, eos) if token is not None}
        before = [names[bos]] if bos is not None else []
        after = [names[eos]] if eos is not None else []
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *(f"{name}:1" for name in before), "$B:1"]
            + [f"{name}:1" for name in after],
            special_tokens=[(name, token) for token, name in names.items()],
        )

    def _template_ends(self) -> list[int]:
        template = self.chat_template or ""
        return [
            self.tokens.index(name)
            for name in _TURN_ENDS
            if name in template and name in self.tokens
        ]

    def _special(self, name: str) -> int | None:
        return self._ids[name]

    def _read_special(self, name: str) -> int | None:
        token = self._get(f"{name}_token_id")
        if token is None:
            return None
        if type(token) is not int or not 0 <= token < len(self.tokens):
            raise ModelError(
                f"{self._path}: {name}_token_id {shown(token)} is not in the vocabulary"
            )
        return token

    def _flag(self, key: str) -> bool:
        value = self._get(key)
        if value is not None and not isinstance(value, bool):
            raise ModelError(f"{self._path}: {key} is {shown(value)}, expected true or false")
        return bool(value)

    def _texts(self, key: str) -> list[str]:
        texts = self._get(key)
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ModelError(f"{self._path}: tokenizer without tokens or merges")
        return texts

    def _token_types(self) -> list[int]:
        types = self._get("token_type")
        if types is None:
            return [1] * len(self.tokens)
        if not isinstance(types, np.ndarray) or types.dtype.kind not in "iu":
            raise ModelError(f"{self._path}: token_type is {shown(types)}, expected numbers")
        if len(types) != len(self.tokens):
            raise ModelError(
                f"{self._path}: {len(types)} token types for {len(self.tokens)} tokens"
            )
        return [int(kind) for kind in types]

    def _pair(self, merge: str) -> tuple[str, str]:
        # A space cannot occur inside a byte-level token.
        left, _, right = merge.partition(" ")
        if not left or not right or " " in right:
            raise ModelError(f"{self._path}: {shown(merge)} is not a merge of two tokens")
        return left, right

    def _get(self, key: str, whole: str | None = None) -> Any:
        return self._metadata.get(whole or f"tokenizer.ggml.{key}")


def _pre_tokenizer(words: str) -> Any:
    if words == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if words == "digits":
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    pattern = _LLAMA3_WORDS if words == "llama3" else _QWEN2_WORDS
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
