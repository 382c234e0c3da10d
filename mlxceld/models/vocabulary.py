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
    have no bytes. All bytes are read once, here, so that looking one up never waits for a
    tokenizer that is busy with a text.
    """

    def __init__(self, tokenizer: Any) -> None:
        added = tokenizer.added_tokens_decoder
        self.special_ids = frozenset(int(token) for token, entry in added.items() if entry.special)
        """Tokens that steer and do not belong to the text."""
        decoders = _decoder_types(tokenizer)
        self.byte_level = bool(decoders) and decoders <= {"ByteLevel", "Fuse"}
        """Whether text is the concatenation of the tokens' bytes, with nothing added or dropped."""
        self.keeps_length = _keeps_length(tokenizer)
        """Whether a text has as many bytes when it is cut into tokens as it had before."""
        to_bytes = _reader(decoders)
        table = [b"" if name is None else to_bytes(name) for name in _names(tokenizer)]
        for token, entry in added.items():
            table.extend([b""] * (int(token) + 1 - len(table)))
            table[int(token)] = str(entry.content).encode()
        self._table = table
        self.longest_token_bytes = max(map(len, table), default=1) or 1
        """How many bytes of text a single token stands for at most."""

    def bytes_of(self, token: int) -> bytes:
        """The token's bytes; a special token's are its name's."""
        return self._table[token] if 0 <= token < len(self._table) else b""


def _reader(decoders: set[str]) -> Callable[[str], bytes]:
    """What turns a token's name into its bytes, by the steps of the tokenizer's decoder."""
    if "ByteLevel" in decoders:
        return _byte_level_bytes
    if "ByteFallback" in decoders:
        return _byte_fallback_bytes
    return _text_bytes


def _byte_level_bytes(name: str) -> bytes:
    try:
        # The stand-ins of all bytes lie below U+0180, so this is one pass at the speed of C.
        return name.translate(_byte_values()).encode("latin-1")
    except UnicodeEncodeError:
        return name.encode()


def _byte_fallback_bytes(name: str) -> bytes:
    if match := _BYTE_TOKEN.fullmatch(name):
        return bytes([int(match[1], 16)])
    return _text_bytes(name)


def _text_bytes(name: str) -> bytes:
    return name.replace(_METASPACE, " ").encode()


def _names(tokenizer: Any) -> list[str | None]:
    """The names of all tokens, by id; None where an id has no token."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        return [None if name is None else str(name) for name in names]
    known: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    found: list[str | None] = [None] * (max(known.values(), default=-1) + 1)
    for name, token in known.items():
        found[token] = name
    return found


def _decoder_types(tokenizer: Any) -> set[str]:
    """The steps of a fast tokenizer's decoder, none where there is no such thing."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return set()
    description = json.loads(decoder.__getstate__())
    steps = description.get("decoders", [description])
    return {str(step.get("type")) for step in steps}


def _keeps_length(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or getattr(backend.model, "fuse_unk", False):
        return False
    if backend.normalizer is None:
        return True
    description = json.loads(backend.normalizer.__getstate__())
    steps = description.get("normalizers", [description])
    return all(step.get("type") == "Prepend" or _lengthens(step) for step in steps)


def _lengthens(step: dict[str, Any]) -> bool:
    """SentencePiece's way with spaces."""
    return step.get("type") == "Replace" and step.get("content") == _METASPACE


@cache
def byte_characters() -> tuple[str, ...]:
    """The printable character that stands for each of the 256 bytes in a byte-level vocabulary."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(0x100, 0x200))
    return tuple(chr(byte) if byte in printable else chr(next(stand_ins)) for byte in range(256))


@cache
def _byte_values() -> dict[int, int | str]:
    """From the stand-ins to the characters U+0000 to U+00FF, whose Latin-1 is the byte.

    What is no stand-in leaves Latin-1, so that a name that is plain text cannot be taken for bytes.
    """
    strangers: dict[int, int | str] = dict.fromkeys(range(256), "\u0180")
    return strangers | {ord(name): byte for byte, name in enumerate(byte_characters())}
