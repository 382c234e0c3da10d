"""A tokenizer that several threads use at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

# One text at a time leaves nothing to compute in parallel, and the library's own threads make it
# print a warning at every fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_CACHED_WORDS = 2000

_PROBES = ("Hello, world.", "", " a\n\nb  c\t", "é你😀", "1234 x's")
"""Texts by which a tokenizer is compared with its backend, with names of special tokens added."""

_SHORT_IDS = 256
"""So few tokens are decoded sooner than another thread could be let in."""


class TextEncoder:
    """Text into ids and back.

    ``tokenizer`` is one of transformers, or mlx-lm's wrapper of one. A fast one's backend is asked
    directly: it lets other threads run and is only read, so nobody waits for anybody. Tokenizers
    in Python, and those that do more than their backend, are used by one thread at a time.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None:
            _limit_word_cache(self._backend)
            self._backend.no_truncation()
            self._backend.no_padding()
            if not self._equals_backend():
                self._backend = None

    @property
    def waits_for_nobody(self) -> bool:
        """Whether threads use the tokenizer at the same time."""
        return self._backend is not None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids; ``add_special_tokens`` puts what the tokenizer adds around a text."""
        if self._backend is not None:
            return self._encode_directly(text, add_special_tokens)
        with self._lock:
            return self._encode_by_tokenizer(text, add_special_tokens)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of the tokens; ids beyond the tokenizer's vocabulary give none."""
        if self._backend is not None:
            return self._decode_directly(ids, skip_special_tokens)
        with self._lock:
            return self._decode_by_tokenizer(ids, skip_special_tokens)

    def _encode_directly(self, text: str, add_special_tokens: bool) -> list[int]:
        # Unlike ``encode``, the batch's form releases the interpreter while it works.
        (found,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = found.ids
        return ids

    def _decode_directly(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        ids = list(ids)
        if len(ids) <= _SHORT_IDS:
            return str(self._backend.decode(ids, skip_special_tokens=skip_special_tokens))
        (text,) = self._backend.decode_batch([ids], skip_special_tokens=skip_special_tokens)
        return str(text)

    def _encode_by_tokenizer(self, text: str, add_special_tokens: bool) -> list[int]:
        # verbose=False: how long a prompt may be is the engine's to say, not a log line's.
        ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens, verbose=False)
        return list(ids)

    def _decode_by_tokenizer(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        # Clean-up would drop spaces before punctuation that the model has written.
        text = self._tokenizer.decode(
            list(ids),
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )
        return str(text)

    def _equals_backend(self) -> bool:
        """Whether the tokenizer does just what its backend does.

        The first call to the tokenizer brings its backend's settings to what its calls expect.
        """
        added = self._tokenizer.added_tokens_decoder.values()
        names = [str(entry.content) for entry in added][:8]
        for text in (*_PROBES, " ".join(["a", *names, "b"])):
            for special in (False, True):
                ids = self._encode_by_tokenizer(text, special)
                if ids != self._encode_directly(text, special):
                    return False
                if self._decode_by_tokenizer(ids, special) != self._decode_directly(ids, special):
                    return False
        return True


def _limit_word_cache(backend: Any) -> None:
    """Have the tokenizer remember fewer words.

    It keeps 10,000 for each thread that encodes, of up to 256 bytes each, at some 30 bytes of
    memory a byte. Where it does not split text at spaces, as Gemma's, a word is a whole message.
    """
    resize = getattr(backend.model, "_resize_cache", None)
    if resize is not None:
        resize(_CACHED_WORDS)
