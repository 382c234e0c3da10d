"""What each token of a vocabulary is in bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_METASPACE = "\u2581"


class Vocabulary:
    """Token ids to exact bytes, read from a transformers tokenizer.

    Byte-level vocabularies write each byte as a printable character; SentencePiece ones write
    spaces as U+2581 and lone bytes as ``<0x0A>``. Ids beyond the vocabulary (models pad theirs)
    have no bytes. Not thread-safe: its owner holds the lock.
    """

    def __init__(self, tokenizer: Any) -> None:
        added = tokenizer.added_tokens_decoder
        self._added = {int(token): str(entry.content) for token, entry in added.items()}
        self.special_ids = frozenset(int(token) for token, entry in added.items() if entry.special)
        """Tokens that steer and do not belong to the text."""
        self._name: Callable[[int], str | None] = _namer(tokenizer)
        decoders = _decoder_types(tokenizer)
        self.byte_level = bool(decoders) and decoders <= {"ByteLevel", "Fuse"}
        """Whether text is the concatenation of the tokens' bytes, with nothing added or dropped."""
        self._byte_level_names = "ByteLevel" in decoders
        self._byte_fallback = "ByteFallback" in decoders

    def bytes_of(self, token: int) -> bytes:
        """The token's bytes; a special token's are its name's."""
        if token in self._added:
            return self._added[token].encode()
        name = self._name(token)
        if name is None:
            return b""
        if self._byte_level_names:
            table = _byte_values()
            if all(character in table for character in name):
                return bytes(table[character] for character in name)
            return name.encode()
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(name)):
            return bytes([int(match[1], 16)])
        return name.replace(_METASPACE, " ").encode()


def _namer(tokenizer: Any) -> Callable[[int], str | None]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        name: Callable[[int], str | None] = backend.id_to_token
        return name

    def slow(token: int) -> str | None:
        if not 0 <= token < len(tokenizer):
            return None
        found = tokenizer.convert_ids_to_tokens(token)
        return None if found is None else str(found)

    return slow


def _decoder_types(tokenizer: Any) -> set[str]:
    """The steps of a fast tokenizer's decoder, none where there is no such thing."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return set()
    description = json.loads(decoder.__getstate__())
    steps = description.get("decoders", [description])
    return {str(step.get("type")) for step in steps}


@cache
def byte_characters() -> tuple[str, ...]:
    """The printable character that stands for each of the 256 bytes in a byte-level vocabulary."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(0x100, 0x200))
    return tuple(chr(byte) if byte in printable else chr(next(stand_ins)) for byte in range(256))


@cache
def _byte_values() -> dict[str, int]:
    return {character: byte for byte, character in enumerate(byte_characters())}
