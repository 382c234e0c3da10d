"""Reads answers that are a series of channel messages, as gpt-oss writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from mlxceld.api.parts import Part, Reasoning, Text
from mlxceld.api.reader import CallNumbers, Reading, first_marker, held
from mlxceld.engine.events import TokenLogprob
from mlxceld.models.calls import parsed
from mlxceld.models.output_format import CHANNEL, MESSAGE
from mlxceld.models.strict_json import quotes_in, strict_json

_CONSTRAIN = "<|constrain|>"
_NEXT = ("<|start|>", CHANNEL)
_ENDS = ("<|end|>", "<|call|>", "<|return|>", *_NEXT)
_MARKERS = (*_ENDS, MESSAGE, _CONSTRAIN)

_LONGEST = max(map(len, _MARKERS)) - 1

_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=(functions\.)?([^\s<]+)")

_HEAD = re.compile(
    r"(?:\s+"
    r"|<\|start\|>(?:\s*assistant\b)?"
    r"|<\|channel\|>(?:\s*(?:analysis|commentary|final)\b(?:\s+(?:json|code)\b)?)?"
    r"|to=[A-Za-z_][^\s<]*"
    r"|<\|constrain\|>\s*\w*"
    r"|<\|end\|>|<\|call\|>|<\|return\|>)*"
)
"""What a message's head is made of; anything else in its place is what is said."""

_HEAD_WORDS = ("assistant", "analysis", "commentary", "final", "to=", "json", "code")


class HarmonyReader:
    """*analysis* is reasoning, *final* the answer, a message to ``functions.NAME`` a call.

    Other commentary is said to the user, before calls for example, and so is text, and so is what
    comes without a head. No marker of the format is ever part of a text. ``reading.opened`` is the
    message that the prompt ends in: what comes first goes on with it.
    """

    def __init__(self, reading: Reading, new_id: Callable[[], str]) -> None:
        self._reading = reading
        self._numbers = CallNumbers(new_id, parallel=reading.parallel)
        self._offered = {tool["function"]["name"] for tool in reading.tools}
        self._buffer = ""
        self._logprobs: list[TokenLogprob] = []
        self._channel: str | None = None
        self._function: str | None = None
        # What has come of a call, joined only where an end may be in it.
        self._held: list[str] = []
        # The head that the prompt has begun for the answer.
        self._begun = ""
        head, message, body = reading.opened.partition(MESSAGE)
        if message and not first_marker(body, _ENDS)[1]:
            self._open(head)
        elif not message:
            self._begun = head

    @property
    def called(self) -> bool:
        """See :class:`AnswerReader`."""
        return self._numbers.count > 0

    def push(self, text: str, logprobs: Iterable[TokenLogprob] = ()) -> list[Part]:
        """See :class:`AnswerReader`."""
        self._logprobs += logprobs
        if self._function is not None and self._channel is not None:
            # As much of what is held is looked at again as the beginning of a marker may be.
            seen = self._buffer + text
            if not first_marker(seen, _ENDS)[1]:
                self._held.append(seen[:-_LONGEST])
                self._buffer = seen[-_LONGEST:]
                return []
        self._buffer += text
        return self._read(final=False)

    def finish(self) -> list[Part]:
        """See :class:`AnswerReader`."""
        return self._read(final=True)

    def _read(self, *, final: bool) -> list[Part]:
        parts: list[Part] = []
        while True:
            if self._channel is None and not self._read_head(final=final):
                break
            # A call's arguments are read whole.
            self._buffer = "".join(self._held) + self._buffer
            self._held.clear()
            if self._function is None:
                at, marker = first_marker(self._buffer, _MARKERS)
            else:
                at, marker = self._end_of_call(final=final)
            if marker:
                ends = marker in _ENDS
                parts += self._body(self._buffer[:at])
                # The next message's head begins with these two.
                skipped = "" if marker in _NEXT else marker
                self._buffer = self._buffer[at + len(skipped) :]
                if ends:
                    self._channel = None
                continue
            if final:
                if self._function is None or self._buffer.strip():
                    parts += self._body(self._buffer)
                self._buffer = ""
            elif self._function is not None:
                self._held.append(self._buffer[:-_LONGEST])
                self._buffer = self._buffer[-_LONGEST:]
            else:
                shown = len(self._buffer) - held(self._buffer, _MARKERS)
                parts += self._body(self._buffer[:shown])
                self._buffer = self._buffer[shown:]
            break
        return parts

    def _end_of_call(self, *, final: bool) -> tuple[int, str]:
        """Where the call ends outside of its strings, and the marker there; (-1, "") if not yet.

        If no other end comes, or another message begins, the first was it.
        """
        first = at, marker = first_marker(self._buffer, _ENDS)
        start = quotes = 0
        while marker:
            quotes += quotes_in(self._buffer, start, at)
            if quotes % 2 == 0:
                return at, marker
            if marker in _NEXT:
                return first
            start = at + len(marker)
            at, marker = first_marker(self._buffer, _ENDS, start)
        return first if final else (-1, "")

    def _read_head(self, *, final: bool) -> bool:
        """Take a head off the buffer, as far as there is one; False if it is not whole yet."""
        at = self._buffer.find(MESSAGE)
        head = _HEAD.match(self._buffer)
        end = head.end() if head else 0
        if 0 <= at <= end:
            self._open(self._begun + self._buffer[:at])
            self._buffer = self._buffer[at + len(MESSAGE) :]
            return True
        begun, rest = self._buffer[:end], self._buffer[end:]
        half = self._may_be_head(rest)
        if not rest or (half and not final):
            return False
        if half and "<|" in begun:
            # Half a head, cut by the limit, says nothing.
            self._buffer = ""
            return False
        self._open(self._begun + begun)
        if begun.strip():
            self._buffer = rest
        return True

    @staticmethod
    def _may_be_head(rest: str) -> bool:
        """Whether what stands after a head so far may still belong to it."""
        if held(rest, _MARKERS) == len(rest):
            return True
        return any(word.startswith(rest) for word in _HEAD_WORDS)

    def _open(self, head: str) -> None:
        self._begun = ""
        channel, to = _CHANNEL.search(head), _RECIPIENT.search(head)
        self._channel = channel[1] if channel else "final"
        self._function = None
        # Without the prefix it may be a tool of the model's own, which nobody offered.
        if to and self._reading.calls is not None and (to[1] or to[2] in self._offered):
            self._function = to[2]

    def _body(self, body: str) -> list[Part]:
        if self._function is not None:
            try:
                call = parsed({"name": self._function, "arguments": strict_json(body or "{}")})
            except ValueError:
                return self._say(body.replace(MESSAGE, "").replace(_CONSTRAIN, ""))
            self._logprobs.clear()
            return self._numbers.parts([call])
        if self._channel == "analysis":
            self._logprobs.clear()
            return [Reasoning(body)] if body else []
        return self._say(body)

    def _say(self, text: str) -> list[Part]:
        if not text:
            return []
        logprobs, self._logprobs = tuple(self._logprobs), []
        return [Text(text, logprobs)]
