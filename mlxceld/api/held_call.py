"""A call that is being written: held back until its end, or until it cannot be one."""

from __future__ import annotations

import re
from collections.abc import Collection

from mlxceld.models.calls import CallFormat, is_json_closed
from mlxceld.models.strict_json import quotes_in

_ENDS_TRIED = 64
"""End markers within one call's values; beyond them the first counts. JSON needs no such bound."""

_BARE_KEYS = ("name", "type", "function", "parameters", "arguments", "id")
_BARE_KEY = re.compile(r'\s*\{\s*(?:"([^"\\]*)("?)|\Z)')
_BARE_NAME = re.compile(r'\s*\{\s*"name"\s*:\s*(?:"([^"\\]*)("?)|\Z)')
_BARE_NAME_KEY = re.compile(r'\s*\{\s*"name"\s*(?:\Z|:)')


class HeldCall:
    """The body of one call as it comes. Its pieces are joined only where its end may be.

    ``form`` None never opens.
    """

    def __init__(self, form: CallFormat | None) -> None:
        self._form = form
        self._pieces: list[str] = []
        self._tail = ""
        self._from = 0
        self._first_end = -1
        self._tried = 0
        # Of JSON: how far it was looked at, and how many quotes were found.
        self._looked_at = self._quotes = 0
        self.open = False

    def begin(self) -> None:
        """A call's opening marker has come."""
        self.open, self._tail, self._from, self._first_end, self._tried = True, "", 0, -1, 0
        self._looked_at = self._quotes = 0

    def close(self) -> None:
        """The call is over."""
        self.open = False

    def push(self, text: str) -> bool:
        """More text; whether the body may be whole with it."""
        form = self._form
        if form is None:
            return True
        self._pieces.append(text)
        seen = self._tail + text
        longest = max(len(form.end), len(form.start)) - 1
        self._tail = seen[-longest:] if longest > 0 else ""
        return bool(form.end) and (form.end in seen or form.start in seen)

    def keep(self, body: str) -> None:
        """Hold back a body whose end has not come."""
        form = self._form
        self._pieces = [body]
        if form is not None:
            longest = max(len(form.end), len(form.start)) - 1
            self._tail = body[-longest:] if longest > 0 else ""

    def take(self) -> str:
        """All that is held."""
        text, self._pieces = "".join(self._pieces), []
        return text

    def end_in(self, body: str, *, final: bool) -> int:
        """Where the end marker stands in ``body``, -1 if it is not there yet.

        One inside a string of the call is passed over. If none other comes, it was the end.
        """
        form = self._form
        if form is None or not form.end:
            return -1
        at = body.find(form.end, self._from)
        while at >= 0:
            if self._is_closed(form, body, at):
                return at
            if self._first_end < 0:
                self._first_end = at
            self._from = at + len(form.end)
            if self._tried > _ENDS_TRIED:
                return self._first_end
            at = body.find(form.end, self._from)
        if self._first_end >= 0 and (final or form.start in body[self._first_end :]):
            return self._first_end
        self._from = max(self._from, len(body) - len(form.end) + 1, 0)
        return -1

    def _is_closed(self, form: CallFormat, body: str, at: int) -> bool:
        if form.closed is not is_json_closed or not body.lstrip().startswith(("{", "[")):
            self._tried += 1
            return form.closed(body[:at])
        # No marker begins in what a backslash escapes, so nothing is looked at twice.
        self._quotes += quotes_in(body, self._looked_at, at)
        self._looked_at = at
        return self._quotes % 2 == 0


def may_be_bare_call(text: str, names: Collection[str]) -> bool:
    """Whether a text that begins with ``{`` may be a call of one of ``names``, or its beginning.

    Llama's calls are plain objects; the first key, and the name where it is that, tell them from
    other objects long before their end.
    """
    key = _BARE_KEY.match(text)
    if key is None:
        return False
    if key[1] is None:
        return True
    if not key[2]:
        return any(one.startswith(key[1]) for one in _BARE_KEYS)
    if key[1] not in _BARE_KEYS:
        return False
    if key[1] != "name":
        return True
    name = _BARE_NAME.match(text)
    if name is None:
        return _BARE_NAME_KEY.fullmatch(text) is not None
    if name[1] is None:
        return True
    return name[1] in names if name[2] else any(one.startswith(name[1]) for one in names)
