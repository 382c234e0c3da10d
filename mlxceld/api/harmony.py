"""Reads answers that are a series of channel messages, as gpt-oss writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

from mlxceld.api.parts import Part, Reasoning, Text
from mlxceld.api.reader import CallNumbers, Reading, first_marker, held
from mlxceld.engine.events import TokenLogprob
from mlxceld.models.calls import parsed
from mlxceld.models.output_format import MESSAGE

_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")


class HarmonyReader:
    """*analysis* is reasoning, *final* the answer, a message to ``functions.NAME`` a call.

    Other commentary is said to the user, before calls for example, and so is text.
    """

    def __init__(self, reading: Reading, new_id: Callable[[], str]) -> None:
        self._reading = reading
        self._numbers = CallNumbers(new_id, parallel=reading.parallel)
        self._buffer = ""
        self._logprobs: list[TokenLogprob] = []
        self._channel: str | None = None
        self._function: str | None = None
        self._head = ""

    @property
    def called(self) -> bool:
        """See :class:`AnswerReader`."""
        return self._numbers.count > 0

    def push(self, text: str, logprobs: Iterable[TokenLogprob] = ()) -> list[Part]:
        """See :class:`AnswerReader`."""
        self._buffer += text
        self._logprobs += logprobs
        return self._read(final=False)

    def finish(self) -> list[Part]:
        """See :class:`AnswerReader`."""
        return self._read(final=True)

    def _read(self, *, final: bool) -> list[Part]:
        parts: list[Part] = []
        while True:
            if self._channel is None:
                at = self._buffer.find(MESSAGE)
                if at < 0:
                    break
                self._open(self._buffer[:at])
                self._buffer = self._buffer[at + len(MESSAGE) :]
            at, marker = first_marker(self._buffer, _ENDS)
            if marker:
                parts += self._body(self._buffer[:at], whole=True)
                # The next message's head begins with these two.
                skipped = "" if marker in ("<|start|>", "<|channel|>") else marker
                self._buffer = self._buffer[at + len(skipped) :]
                self._channel = None
                continue
            if final:
                parts += self._body(self._buffer, whole=True)
                self._buffer = ""
            elif self._function is None:
                shown = len(self._buffer) - held(self._buffer, _ENDS)
                parts += self._body(self._buffer[:shown], whole=False)
                self._buffer = self._buffer[shown:]
            break
        return parts

    def _open(self, head: str) -> None:
        self._head = head
        channel, to = _CHANNEL.search(head), _RECIPIENT.search(head)
        self._channel = channel[1] if channel else "final"
        self._function = to[1] if to and self._reading.calls is not None else None

    def _body(self, body: str, *, whole: bool) -> list[Part]:
        if self._function is not None and whole:
            try:
                call = parsed({"name": self._function, "arguments": json.loads(body or "{}")})
            except ValueError:
                return self._say(self._head + MESSAGE + body)
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
