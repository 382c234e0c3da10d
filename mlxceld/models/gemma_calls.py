"""Gemma's calls: ``call:NAME{key:value,…}``, with strings between delimiters of their own.

Read in one pass. mlx-lm's regular expressions end FunctionGemma's at the first brace, also in a
string, and need time with the square of a text of unclosed braces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlxceld.models.strict_json import strict_json

Tools = Sequence[Mapping[str, Any]]

_CALL = re.compile(r"call:([\w-]{1,128})(?=\{)")
_BARE = re.compile(r"[^,{}\[\]]*")
_KEY = re.compile(r"\s*([^:,{}\[\]]{1,256}):")
_SPACE = re.compile(r"\s*")
_DEPTH = 64


def gemma_parser(delimiter: str) -> Callable[[str, Tools], list[dict[str, Any]]]:
    """Reads calls whose strings stand between two of ``delimiter``.

    Values are strings, objects, lists, or JSON's bare words; other bare text is text. The parser
    raises ValueError where there is no call or one has no end.
    """

    def parse(text: str, tools: Tools) -> list[dict[str, Any]]:
        calls = []
        at = 0
        while (head := _CALL.search(text, at)) is not None:
            arguments, at = _Reader(text, delimiter).value(head.end(), 0)
            calls.append({"name": head[1], "arguments": arguments})
        if not calls:
            raise ValueError("there is no call")
        return calls

    return parse


def is_gemma_closed(delimiter: str) -> Callable[[str], bool]:
    """Tells whether the end of a body is outside of a string."""
    return lambda body: body.count(delimiter) % 2 == 0


class _Reader:
    """A text with values in it; each method takes a place and returns a value and its end."""

    def __init__(self, text: str, delimiter: str) -> None:
        self._text = text
        self._delimiter = delimiter

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        if depth > _DEPTH:
            raise ValueError("the arguments are nested too deeply")
        at = self._skip(at)
        if self._text.startswith(self._delimiter, at):
            return self._string(at)
        match self._text[at : at + 1]:
            case "{":
                return self._object(at + 1, depth)
            case "[":
                return self._list(at + 1, depth)
        found = _BARE.match(self._text, at)
        bare = found[0].strip() if found else ""
        return _word(bare), at + (len(found[0]) if found else 0)

    def _string(self, at: int) -> tuple[str, int]:
        start = at + len(self._delimiter)
        end = self._text.find(self._delimiter, start)
        if end < 0:
            raise ValueError("a string has no end")
        return self._text[start:end], end + len(self._delimiter)

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        while not self._ends(at, "}"):
            key, at = self._key(at)
            found[key], at = self.value(at, depth + 1)
            at = self._comma(at, "}")
        return found, self._skip(at) + 1

    def _list(self, at: int, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while not self._ends(at, "]"):
            value, at = self.value(at, depth + 1)
            found.append(value)
            at = self._comma(at, "]")
        return found, self._skip(at) + 1

    def _key(self, at: int) -> tuple[str, int]:
        at = self._skip(at)
        if self._text.startswith(self._delimiter, at):
            key, at = self._string(at)
            at = self._skip(at)
            if not self._text.startswith(":", at):
                raise ValueError("a key has no value")
            return key, at + 1
        found = _KEY.match(self._text, at)
        if found is None:
            raise ValueError("a key is missing")
        return found[1].strip().strip('"'), found.end()

    def _skip(self, at: int) -> int:
        space = _SPACE.match(self._text, at)
        return space.end() if space else at

    def _ends(self, at: int, closing: str) -> bool:
        at = self._skip(at)
        if at >= len(self._text):
            raise ValueError(f"the end is missing: {closing}")
        return self._text.startswith(closing, at)

    def _comma(self, at: int, closing: str) -> int:
        at = self._skip(at)
        if self._text.startswith(",", at):
            return at + 1
        if not self._text.startswith(closing, at):
            raise ValueError(f"expected a comma or {closing}")
        return at


def _word(bare: str) -> Any:
    if not bare:
        raise ValueError("a value is missing")
    try:
        return strict_json(bare)
    except ValueError:
        return bare
