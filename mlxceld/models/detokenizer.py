"""Tokens into text one by one, in whole characters only."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

_SEED_TOKENS = 6
"""How many of the prompt's last tokens decide how the first piece begins (its leading space)."""

_REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """The text of one sequence as it grows; special tokens give none."""

    def add(self, token: int) -> str:
        """Take a token and return the text that it completes, which may be empty."""

    def finish(self) -> str:
        """Return what was held back: U+FFFD where a character stayed incomplete."""


class ByteDetokenizer:
    """For byte-level vocabularies: every token is bytes, and UTF-8 says where characters end.

    ``token_bytes`` gives a token's bytes, none for a special token. A prompt that ends inside a
    character has that character completed by the first tokens.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], prompt: Sequence[int]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in prompt[-_SEED_TOKENS:]:
            self._decoder.decode(token_bytes(token))

    def add(self, token: int) -> str:
        """See :class:`Detokenizer`."""
        return self._decoder.decode(self._token_bytes(token))

    def finish(self) -> str:
        """See :class:`Detokenizer`."""
        return self._decoder.decode(b"", final=True)


class MarkerDetokenizer:
    """Another detokenizer, with the names of some special tokens shown in place of nothing."""

    def __init__(
        self, inner: Detokenizer, token_text: Callable[[int], str], shown: Collection[int]
    ) -> None:
        self._inner = inner
        self._token_text = token_text
        self._shown = shown

    def add(self, token: int) -> str:
        """See :class:`Detokenizer`."""
        if token not in self._shown:
            return self._inner.add(token)
        # The inner one learns of it too: how the next token reads may depend on it.
        return self._inner.add(token) + self._token_text(token)

    def finish(self) -> str:
        """See :class:`Detokenizer`."""
        return self._inner.finish()


class WindowDetokenizer:
    """For any other vocabulary: decodes a short window of tokens before and after each new one.

    How a token reads may depend on the one before it (a leading space, a byte of a character), so
    a piece is what the window with the token has more than the window without it. ``decode``
    gives no text for ``special`` tokens.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        prompt: Sequence[int],
        special: Collection[int] = (),
    ) -> None:
        self._decode = decode
        self._special = special
        self._window = list(prompt[-_SEED_TOKENS:])
        self._emitted_tokens = len(self._window)
        self._emitted_text = decode(self._window) if self._window else ""

    def add(self, token: int) -> str:
        """See :class:`Detokenizer`."""
        if token in self._special:
            return ""
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(_REPLACEMENT):
            return ""
        return self._take(text)

    def finish(self) -> str:
        """See :class:`Detokenizer`."""
        return self._take(self._decode(self._window))

    def _take(self, text: str) -> str:
        piece = text[len(self._emitted_text) :]
        if piece:
            # The tokens just emitted become the context of the next ones.
            self._window = self._window[self._emitted_tokens :]
            self._emitted_tokens = len(self._window)
            self._emitted_text = self._decode(self._window)
        return piece
