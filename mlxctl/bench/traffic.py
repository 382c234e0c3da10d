"""Sends a scenario's requests and takes the time of what comes back.

While a scenario runs nothing is parsed: pieces are kept with their time of arrival and read
afterwards, so that the client takes as little as it can of the cores that the server computes on.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlxctl.bench import tools
from mlxctl.bench.answer import Answer, has_text, read_stream
from mlxctl.bench.scenarios import Conversation, Message, Scenario, Turn

if TYPE_CHECKING:
    import aiohttp


@dataclass
class Asked:
    """A request as it was sent, and what came."""

    messages: list[Message]
    tools: tuple[Message, ...]
    answer: Answer


@dataclass
class Traffic:
    """All requests of one scenario, in the order of their sending; ``wall`` in seconds."""

    warming: list[Asked] = field(default_factory=list)
    measured: list[Asked] = field(default_factory=list)
    wall: float = 0.0


@dataclass
class Sender:
    """Speaks to one server; ``timeout`` is of one request, in seconds."""

    url: str
    model: str
    timeout: float
    native_tools: bool = True
    clock: Callable[[], float] = time.perf_counter

    def warm(self, scenario: Scenario) -> list[Asked]:
        """Send the warming requests, one after another."""
        return asyncio.run(self._all(scenario.warming, 1, ()))

    def measure(self, scenario: Scenario) -> tuple[list[Asked], float]:
        """Send the measured ones as the scenario has it; returns them and the wall seconds."""
        began = self.clock()
        asked = asyncio.run(self._all(scenario.conversations, scenario.at_once, scenario.late))
        return asked, self.clock() - began

    async def _all(
        self, conversations: Sequence[Conversation], at_once: int, late: Sequence[Conversation]
    ) -> list[Asked]:
        import aiohttp

        asked: list[Asked] = []
        limit = asyncio.Semaphore(max(1, at_once))
        begun = [asyncio.Event() for _ in conversations]
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self.timeout),
            connector=aiohttp.TCPConnector(limit=0),
        ) as session:
            began = self.clock()

            async def early(index: int, conversation: Conversation) -> None:
                async with limit:
                    talk = _Talk(self, session, began, index, conversation, asked)
                    try:
                        await talk.run(begun[index])
                    finally:
                        begun[index].set()

            async def between(index: int, conversation: Conversation) -> None:
                for event in begun:
                    await event.wait()
                await _Talk(self, session, began, index, conversation, asked, late=True).run()

            first = len(conversations)
            await asyncio.gather(
                *(early(index, one) for index, one in enumerate(conversations)),
                *(between(first + index, one) for index, one in enumerate(late)),
            )
        return asked


@dataclass
class _Talk:
    """One conversation under way."""

    sender: Sender
    session: aiohttp.ClientSession
    began: float
    index: int
    conversation: Conversation
    asked: list[Asked]
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
        import aiohttp

        clock, answer = self.sender.clock, asked.answer
        payload = json.dumps(request_body(self.sender.model, asked, turn.tokens)).encode()
        chunks: list[tuple[float, bytes]] = []
        sent = clock()
        answer.sent = sent - self.began
        try:
            async with self.session.post(
                f"{self.sender.url}/v1/chat/completions",
                data=payload,
                headers={"Content-Type": "application/json"},
            ) as response:
                if response.status != 200:
                    text = (await response.text())[:500]
                    answer.error = f"status {response.status}: {text}"
                else:
                    async for chunk in response.content.iter_any():
                        chunks.append((clock() - sent, chunk))
                        if begun is not None and not begun.is_set() and has_text(chunk):
                            begun.set()
        except TimeoutError:
            answer.error = f"no whole answer within {self.sender.timeout:g} s"
        except aiohttp.ClientError as error:
            answer.error = f"{type(error).__name__}: {error}"
        answer.ended = clock() - self.began
        if answer.error is None:
            read_stream(answer, chunks)


def request_body(model: str, asked: Asked, tokens: int) -> dict[str, Any]:
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
    return body
