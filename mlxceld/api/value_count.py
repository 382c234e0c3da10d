"""Counts a body's JSON values as it arrives; one with too many is not read to its end."""

from __future__ import annotations

import re

_STRING = re.compile(rb'"(?:[^"\\]+|\\.)*+"', re.DOTALL)
_IN_STRING = re.compile(rb'(?:[^"\\]+|\\.)*+', re.DOTALL)
_SEPARATORS = (b",", b"[", b"{")


class TooManyValuesError(ValueError):
    """The text has more than ``limit`` values."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {limit} values")
        self.limit = limit


class ValueCounter:
    """Fed with a JSON text's pieces, however it is cut; linear, whatever it contains."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._separators = 0
        self._strings = 0
        self._in_string = False
        self._rest = b""

    def feed(self, piece: bytes) -> None:
        """Count what comes next. Raises TooManyValuesError past the limit."""
        at = 0
        if self._in_string:
            if self._rest:
                piece, self._rest = self._rest + piece, b""
            at = self._end_of_string(piece, 0)
            if self._in_string:
                return
        outside, strings = _STRING.subn(b"", piece[at:] if at else piece)
        if (quote := outside.find(b'"')) >= 0:
            strings += 1
            self._in_string = True
            self._end_of_string(outside, quote + 1)
            outside = outside[:quote]
        self._strings += strings
        self._separators += sum(map(outside.count, _SEPARATORS))
        # Every value but the first has a separator before it; a text of strings alone is no JSON.
        if self._separators > self._limit or self._strings > 2 * self._limit:
            raise TooManyValuesError(self._limit)

    def _end_of_string(self, piece: bytes, at: int) -> int:
        """Where the open string has ended, or the piece; keeps the half of an escape for later."""
        match = _IN_STRING.match(piece, at)
        end = at if match is None else match.end()
        if end < len(piece) and piece[end] == 0x22:
            self._in_string = False
            return end + 1
        # Only a backslash without its character is left.
        self._rest = piece[end:]
        return len(piece)
