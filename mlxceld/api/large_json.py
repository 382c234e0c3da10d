"""JSON of any size, parsed so that no other thread waits for long.

Python's parser keeps the interpreter until it is done. The values are counted before (see
:mod:`mlxceld.api.value_count`), and long strings are found in slices and decoded apart, in pieces.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

LONG_STRING = 64 * 1024
"""Bytes from which on a string is decoded apart."""

_SLICE = 128 * 1024
_PAUSE_SECONDS = 5e-5
"""Long enough for a thread that waits for the interpreter to get it."""

_IN_STRING = re.compile(rb'(?:[^"\\]+|\\.)*+', re.DOTALL)
_WHOLE = re.compile(
    rb"(?:[^\\\x80-\xff]+"
    rb"|\\[^u]"
    rb"|\\u(?:[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]|(?![dD][89abAB])[0-9a-fA-F]{2})[0-9a-fA-F]{2}"
    rb"|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3})*+",
    re.DOTALL,
)
"""Ends where no escape, no pair of surrogates and no character is open."""


def parse_in_slices(
    raw: bytes,
    loads: Callable[[bytes], Any],
    pause: Callable[[float], None] = time.sleep,
) -> Any:
    """``loads(raw)``, for a large ``raw``; ``loads`` itself gets a text without long strings.

    Raises what ``loads`` does for what is no JSON.
    """
    spans = list(_long_strings(raw, pause))
    if not spans:
        return loads(raw)
    mark = secrets.token_hex(16)
    texts: dict[str, str] = {}
    parts: list[bytes] = []
    at = 0
    for number, (start, end) in enumerate(spans):
        name = f"{mark}{number}"
        texts[name] = "".join(_decoded(raw, start, end, loads, pause))
        parts += (raw[at:start], name.encode())
        at = end
    parts.append(raw[at:])
    pause(_PAUSE_SECONDS)
    value = loads(b"".join(parts))
    return _filled(value, texts)


def _long_strings(raw: bytes, pause: Callable[[float], None]) -> Iterator[tuple[int, int]]:
    """Where the contents of long strings begin and end."""
    at = paused_at = 0
    while (quote := _find_quote(raw, at, pause)) < len(raw):
        end = _end_of_string(raw, quote + 1, pause)
        if end - quote > LONG_STRING:
            yield quote + 1, end
        at = end + 1
        if at - paused_at > _SLICE:
            pause(_PAUSE_SECONDS)
            paused_at = at


def _find_quote(raw: bytes, at: int, pause: Callable[[float], None]) -> int:
    while at < len(raw):
        found = raw.find(b'"', at, at + _SLICE)
        if found >= 0:
            return found
        at += _SLICE
        pause(_PAUSE_SECONDS)
    return len(raw)


def _end_of_string(raw: bytes, at: int, pause: Callable[[float], None]) -> int:
    """Where the quote is that ends the string; the end of the text where there is none."""
    while True:
        match = _IN_STRING.match(raw, at, at + _SLICE)
        end = at if match is None else match.end()
        if end >= len(raw) or raw[end] == 0x22:
            return min(end, len(raw))
        if end < at + _SLICE - 1:
            # A backslash at the very end of the text.
            return len(raw)
        at = end
        pause(_PAUSE_SECONDS)


def _decoded(
    raw: bytes,
    start: int,
    end: int,
    loads: Callable[[bytes], Any],
    pause: Callable[[float], None],
) -> Iterator[str]:
    """A string's text, piece by piece."""
    while start < end:
        cut = end
        if end - start > _SLICE:
            whole = _WHOLE.match(raw, start, start + _SLICE)
            # At what is nothing whole it does not matter where the text is cut: it is refused.
            cut = whole.end() if whole and whole.end() > start else start + _SLICE
        yield str(loads(b'"%b"' % raw[start:cut]))
        start = cut
        pause(_PAUSE_SECONDS)


def _filled(value: Any, texts: dict[str, str]) -> Any:
    """``value`` with the long strings in their places, values and keys."""
    if isinstance(value, str):
        return texts.get(value, value)
    stack = [value]
    while stack:
        holder = stack.pop()
        if isinstance(holder, dict):
            for key in [key for key in holder if key in texts]:
                holder[texts[key]] = holder.pop(key)
            places: Any = list(holder.items())
        else:
            places = enumerate(holder)
        for place, inner in places:
            if isinstance(inner, str):
                if inner in texts:
                    holder[place] = texts[inner]
            elif isinstance(inner, dict | list):
                stack.append(inner)
    return value
