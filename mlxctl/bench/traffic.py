"""Sends a scenario's requests and takes the time of what comes back.

While an answer comes it is not parsed: its pieces are kept with their time of arrival and read
afterwards, so that the client takes as little as it can of the cores that the server computes on.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlxctl.bench import http, tools
from mlxctl.bench.answer import Answer, has_text, read_stream
from mlxctl.bench.scenarios import Conversation, Message, Scenario, Turn

_ACCEPT_SECONDS = 0.02
"""Between connections that are opened beforehand, for the server to accept each."""

_LEAST_BIAS = -100
"""What OpenAI's API takes for a token that must not come."""


@dataclass
class Asked:
    """A request as it was sent, and what came."""

    messages: list[Message]
    tools: tuple[Message, ...]
    answer: Answer


@dataclass
class Sender:
    """Speaks to one server; ``timeout`` is of one request, in seconds.

    Answers have none of the token ids ``banned``.
    """

    url: str
    model: str
    timeout: float
    native_tools: bool = True
    banned: tuple[int, ...] = ()
    clock: Callable[[], float] = time.perf_counter
    wall: float = 0.0
    """Of the last load."""

    def warm(self, scenario: Scenario) -> list[Asked]:
        """Send the warming requests, one after another."""
        return asyncio.run(self._all(scenario.warming, 1, ()))

    def measure(self, scenario: Scenario) -> tuple[list[Asked], float]:
        """Send the measured ones as the scenario has it; returns them and the wall seconds."""
        asked = asyncio.run(self._all(scenario.conversations, scenario.at_once, scenario.late))
        return asked, self.wall

    async def _all(
        self, conversations: Sequence[Conversation], at_once: int, late: Sequence[Conversation]
    ) -> list[Asked]:
        asked: list[Asked] = []
        limit = asyncio.Semaphore(max(1, at_once))
        begun = [asyncio.Event() for _ in conversations]
        spare: list[http.Connection] = []
        try:
            for _ in range(min(at_once, len(conversations)) + len(late)):
                spare.append(await http.connect(self.url))
                await asyncio.sleep(_ACCEPT_SECONDS)
        except OSError:
            # Each request will find the same and tell it.
            pass
        began = self.clock()

        async def early(index: int, conversation: Conversation) -> None:
            async with limit:
                talk = _Talk(self, began, index, conversation, asked, spare)
                try:
                    await talk.run(begun[index])
                finally:
                    begun[index].set()

        async def between(index: int, conversation: Conversation) -> None:
            for event in begun:
                await event.wait()
            await _Talk(self, began, index, conversation, asked, spare, late=True).run()

        first = len(conversations)
        try:
            await asyncio.gather(
                *(early(index, one) for index, one in enumerate(conversations)),
                *(between(first + index, one) for index, one in enumerate(late)),
            )
        finally:
            self.wall = self.clock() - began
            for connection in spare:
                connection.close()
        return asked


@dataclass
class _Talk:
    """One conversation under way."""

    sender: Sender
    began: float
    index: int
    conversation: Conversation
    asked: list[Asked]
    spare: list[http.Connection]
    late: bool = False

    async def run(self, begun: asyncio.Event | None = None) -> None:
        """Ask turn after turn; a turn without an answer ends the conversation."""
        messages: list[Message] = []
        for number, turn in enumerate(self.conversation.turns):
            messages += turn.add
            asked = Asked(
                list(messages),
                self.conversation.tools,
                Answer(self.index, number, late=self.late),
            )
            self.asked.append(asked)
            await self._ask(asked, turn, begun)
            if asked.answer.error is not None:
                return
            messages.append(
                tools.assistant_message(
                    asked.answer.text, turn.call, native=self.sender.native_tools
                )
            )

    async def _ask(self, asked: Asked, turn: Turn, begun: asyncio.Event | None) -> None:
        clock, answer = self.sender.clock, asked.answer
        body = request_body(self.sender.model, asked, turn.tokens, self.sender.banned)
        payload = json.dumps(body).encode()

        def seen(chunk: bytes) -> None:
            if begun is not None and not begun.is_set() and has_text(chunk):
                begun.set()

        sent = clock()
        answer.sent = sent - self.began
        connection: http.Connection | None = None
        try:
            async with asyncio.timeout(self.sender.timeout):
                connection = (
                    self.spare.pop(0) if self.spare else await http.connect(self.sender.url)
                )
                pieces = await connection.post(
                    "/v1/chat/completions", payload, lambda: clock() - sent, seen
                )
        except TimeoutError:
            answer.error = f"no whole answer within {self.sender.timeout:g} s"
        except OSError as error:
            answer.error = f"the connection failed: {error}"
        finally:
            answer.ended = clock() - self.began
            if connection is not None:
                connection.close()
        if answer.error is None:
            _read(answer, pieces)


def _read(answer: Answer, pieces: list[http.Piece]) -> None:
    try:
        status, body = http.read_response(pieces)
    except http.ResponseError as error:
        answer.error = str(error)
        return
    if status == 200:
        read_stream(answer, body)
    else:
        text = b"".join(piece for _, piece in body).decode(errors="replace")
        answer.error = f"status {status}: {text[:500]}"


def request_body(
    model: str, asked: Asked, tokens: int, banned: Sequence[int] = ()
) -> dict[str, Any]:
    """A greedy, streamed chat request."""
    body: dict[str, Any] = {
        "model": model,
        "messages": asked.messages,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if asked.tools:
        body["tools"] = list(asked.tools)
    if banned:
        body["logit_bias"] = dict.fromkeys(map(str, banned), _LEAST_BIAS)
    return body
