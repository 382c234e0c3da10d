"""Reads a model's text as it comes into the parts of an answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mlxceld.api.held_call import HeldCall, may_be_bare_call
from mlxceld.api.parts import CallArguments, CallStart, Part, Reasoning, Text, is_json
from mlxceld.engine.events import TokenLogprob
from mlxceld.models.calls import CallFormat, ParsedCall

_FORCED_HEAD = re.compile(r'\A\s*\{"name": ("(?:[^"\\]|\\.)*"), "arguments": ')

_SPACE = 1024
"""Characters of blank space that are held back, since they may be a marker's."""

_BARE_HEAD = 1024
"""Characters of a bare call after which no more of them are needed to tell its name."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How one request's answers are to be read.

    ``calls`` is None where calls are to stay text. ``forced`` says that the answer proper is one
    call as plain JSON, which a grammar has seen to. ``in_reasoning`` says that the prompt ends
    inside reasoning, ``begun`` that the answer goes on with text or reasoning which the prompt has
    begun. ``opened`` is the message that it ends in, where answers are channel messages.
    ``parallel`` False lets the first call alone through.
    """

    thinking: tuple[str, str] | None = None
    calls: CallFormat | None = None
    tools: Sequence[Mapping[str, Any]] = field(default=())
    harmony: bool = False
    forced: bool = False
    in_reasoning: bool = False
    begun: bool = False
    opened: str = ""
    parallel: bool = True


class AnswerReader(Protocol):
    """Takes the text of one answer piece by piece. Nothing that may be a marker is let through."""

    @property
    def called(self) -> bool:
        """Whether the answer has a tool call."""

    def push(self, text: str, logprobs: Iterable[TokenLogprob] = ()) -> list[Part]:
        """The parts that ``text`` completes."""

    def finish(self) -> list[Part]:
        """The answer has ended: the rest."""


class CallNumbers:
    """Turns parsed calls into parts, numbered and with ids; ``new_id`` makes one."""

    def __init__(self, new_id: Callable[[], str], *, parallel: bool) -> None:
        self._new_id = new_id
        self._parallel = parallel
        self.count = 0

    def start(self, name: str, given: str | None = None) -> list[Part]:
        """A call begins; none if this answer may have no more."""
        if self.count and not self._parallel:
            return []
        self.count += 1
        return [CallStart(self.count - 1, given or self._new_id(), name)]

    def parts(self, calls: Iterable[ParsedCall]) -> list[Part]:
        """Whole calls."""
        found: list[Part] = []
        for call in calls:
            if begun := self.start(call.name, call.id):
                found += [*begun, CallArguments(self.count - 1, call.arguments)]
        return found


class MarkedReader:
    """For models that mark reasoning and calls inside one text.

    Reasoning comes first: once it has ended, or text has begun, its markers are text. Line breaks
    directly before a call, and blank space around reasoning and between calls, are the format's and
    not the text's. A call that cannot be parsed comes as the text that it was.
    """

    def __init__(self, reading: Reading, new_id: Callable[[], str]) -> None:
        self._reading = reading
        self._calls = reading.calls
        self._numbers = CallNumbers(new_id, parallel=reading.parallel)
        self._held = HeldCall(reading.calls)
        self._buffer = ""
        self._logprobs: list[TokenLogprob] = []
        self._mode = self._reasoning if reading.in_reasoning else self._text
        self._thought = reading.in_reasoning
        self._fresh = not reading.begun  # nothing of the current stretch has been shown
        self._said = reading.begun and not reading.in_reasoning
        self._breaks = ""  # line breaks before a call, which are text if it is none
        self._forced_open = False
        self._arguments: list[str] = []  # of a forced call, as they came

    @property
    def called(self) -> bool:
        """See :class:`AnswerReader`."""
        return self._numbers.count > 0

    def push(self, text: str, logprobs: Iterable[TokenLogprob] = ()) -> list[Part]:
        """See :class:`AnswerReader`."""
        self._logprobs += logprobs
        if self._held.open and not self._held.push(text):
            return []
        self._buffer += self._held.take() if self._held.open else text
        return self._read(final=False)

    def finish(self) -> list[Part]:
        """See :class:`AnswerReader`."""
        self._buffer += self._held.take()
        return self._read(final=True)

    def _read(self, *, final: bool) -> list[Part]:
        parts: list[Part] = []
        while True:
            mode = self._mode
            found, again = mode(final)
            parts += found
            if not again:
                break
        if final and self._logprobs:
            parts.append(self._shown(""))
        return parts

    # The stretches of an answer. Each returns its parts and whether to go on reading.

    def _text(self, final: bool) -> tuple[list[Part], bool]:
        reading = self._reading
        if reading.forced:
            self._mode = self._forced
            return [], True
        if not self._said and reading.calls is not None and reading.calls.bare:
            begun = self._buffer.lstrip()
            if begun.startswith("{"):
                self._mode = self._bare
                return [], True
            if not begun and not final:
                return [], False
        openings = self._openings()
        at, marker = first_marker(self._buffer, openings)
        if marker:
            before, self._buffer = self._buffer[:at], self._buffer[at + len(marker) :]
            is_call = reading.calls is not None and marker == reading.calls.start
            if is_call:
                kept = _without_end(before, "\n")
                self._breaks = before[len(kept) :]
                parts = self._say(kept, ends=True)
                self._mode = self._call
                self._held.begin()
            else:
                parts = self._say(_without_end(before), ends=True)
                self._mode = self._reasoning
                self._thought = True
            self._fresh = True
            return parts, True
        if final:
            return self._say(self._take(), ends=True), False
        keep = held(self._buffer, openings)
        shown = self._buffer[: len(self._buffer) - keep]
        if openings:
            # It may be the space before a marker.
            shown = _without_end(shown)
        self._buffer = self._buffer[len(shown) :]
        return self._say(shown), False

    def _openings(self) -> list[str]:
        """What may end the text that is being read."""
        openings = [self._calls.start] if self._calls is not None else []
        thinking = self._reading.thinking
        if thinking and not self._thought and not self._said and not self.called:
            begun = self._buffer.lstrip()
            if begun.startswith(thinking[0]) or thinking[0].startswith(begun):
                openings.append(thinking[0])
        return openings

    def _reasoning(self, final: bool) -> tuple[list[Part], bool]:
        start, end = self._reading.thinking or ("", "")
        if self._fresh and self._reading.in_reasoning and start:
            # Some models write the opening marker again that the prompt ends with.
            begun = self._buffer.lstrip()
            if begun.startswith(start):
                self._buffer = begun[len(start) :]
            elif start.startswith(begun) and not final:
                return [], False
        at = self._buffer.find(end) if end else -1
        if at >= 0:
            thought, self._buffer = self._buffer[:at], self._buffer[at + len(end) :]
            self._mode = self._text
            parts = self._think(_without_end(thought))
            self._fresh = True
            return parts, True
        if final:
            return self._think(_without_end(self._take())), False
        keep = held(self._buffer, [end])
        shown = _without_end(self._buffer[: len(self._buffer) - keep])
        self._buffer = self._buffer[len(shown) :]
        return self._think(shown), False

    def _call(self, final: bool) -> tuple[list[Part], bool]:
        form = self._calls
        if form is None:
            raise RuntimeError("a call is read without a format")
        at = self._held.end_in(self._buffer, final=final)
        if at < 0 and not final:
            self._held.keep(self._take())
            return [], False
        self._held.close()
        whole = at >= 0
        body = self._buffer[:at] if whole else self._buffer
        self._buffer = self._buffer[at + len(form.end) :] if whole else ""
        self._mode = self._text
        try:
            if not whole and form.end and not form.whole(body):
                raise ValueError("the call has been cut")
            parts = self._numbers.parts(form.parse(body, self._reading.tools))
        except ValueError:
            closing = form.end if whole else ""
            parts = self._say(self._breaks + form.start + body + closing, ends=True)
        else:
            self._logprobs.clear()
        self._fresh = True
        return parts, whole

    def _bare(self, final: bool) -> tuple[list[Part], bool]:
        form = self._calls
        if form is None:
            return [], False
        known = {tool["function"]["name"] for tool in self._reading.tools}
        if not may_be_bare_call(self._buffer, known):
            # Text like any other, which need not wait for its end.
            parts = self._say(self._take())
            self._mode = self._text
            self._said = True
            return parts, True
        if not final:
            if len(self._buffer) > _BARE_HEAD:
                # Its name has been seen, and nothing but its end tells more.
                self._held.begin()
                self._held.keep(self._take())
            return [], False
        body = self._take()
        try:
            calls = form.parse(body, self._reading.tools)
        except ValueError:
            return self._say(body, ends=True), False
        if not all(call.name in known for call in calls):
            return self._say(body, ends=True), False
        self._logprobs.clear()
        return self._numbers.parts(calls), False

    def _forced(self, final: bool) -> tuple[list[Part], bool]:
        """``{"name": …, "arguments": …}``; the last brace is not the arguments'."""
        parts: list[Part] = []
        if not self._forced_open:
            head = _FORCED_HEAD.match(self._buffer)
            if head is None:
                if final:
                    # Cut by the limit: it was never meant as text, and calls nothing yet.
                    self._take()
                    self._logprobs.clear()
                return [], False
            self._forced_open = True
            self._buffer = self._buffer[head.end() :]
            parts += self._numbers.start(json.loads(head[1]))
        text = self._buffer.rstrip()
        if text.endswith("}"):
            text = text[:-1]
        if final and not is_json("".join(self._arguments) + text):
            # Cut by the limit: the last brace, if one came, is the arguments' own.
            text = self._buffer
        self._buffer = self._buffer[len(text) :]
        if text:
            self._arguments.append(text)
            parts.append(CallArguments(0, text))
            self._logprobs.clear()
        return parts, False

    # What is let out.

    def _take(self) -> str:
        text, self._buffer = self._buffer, ""
        return text

    def _say(self, text: str, *, ends: bool = False) -> list[Part]:
        """Text to show; ``ends`` says that the stretch is over with it."""
        if self._fresh:
            if not self._said and (self.called or self._thought or self._reading.thinking):
                text = text.lstrip("\n") if not self.called else text.lstrip()
            elif not self.called and self._thought:
                text = text.lstrip("\n")
            if ends and self.called and not text.strip():
                # Between two calls, or after the last.
                return []
        if not text:
            return []
        self._fresh, self._said = False, True
        return [self._shown(text)]

    def _shown(self, text: str) -> Text:
        logprobs, self._logprobs = tuple(self._logprobs), []
        return Text(text, logprobs)

    def _think(self, text: str) -> list[Part]:
        if self._fresh:
            text = text.lstrip()
        self._logprobs.clear()
        if not text:
            return []
        self._fresh = False
        return [Reasoning(text)]


def _without_end(text: str, space: str | None = None) -> str:
    """Text without the ``space`` at its end, at most ``_SPACE`` characters of it."""
    return text[: max(len(text.rstrip(space)), len(text) - _SPACE)]


def first_marker(text: str, markers: Iterable[str], start: int = 0) -> tuple[int, str]:
    """Where the first of ``markers`` stands from ``start`` on, and which; (-1, "") if none does."""
    places = [(at, marker) for marker in markers if (at := text.find(marker, start)) >= 0]
    return min(places, default=(-1, ""))


def held(text: str, markers: Iterable[str]) -> int:
    """How many characters at the end of ``text`` may be the beginning of a marker."""
    longest = 0
    for marker in markers:
        for length in range(min(len(marker) - 1, len(text)), longest, -1):
            if text.endswith(marker[:length]):
                longest = length
                break
    return longest
