"""What the clients of the soak ask, and whether each was told what it had to be.

Everything that is asked follows from the seed and the number of the request; only when clients
leave, and what then has happened already, is up to time.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from soak_dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Answer, read_stream, read_whole
from soak_prompts import SYSTEMS, Body, Reference, words
from soak_refusals import bad_requests

PATIENCE_SECONDS = 300
"""A request that takes longer is lost."""

_TALK_CHARACTERS = 1500
"""A conversation longer than this begins anew."""


@dataclass
class Outcome:
    """How a request ended: done, cancelled, refused, or its client left.

    ``problem`` says what was not as it had to be, and is empty if all was. ``ttft`` is the seconds
    to the first text of a stream of an ordinary kind.
    """

    number: int
    kind: str
    path: str
    request_id: str
    sequences: int
    ended: str
    answer: Answer | None = None
    problem: str = ""
    ttft: float | None = None


class Load:
    """The clients of one daemon. :meth:`run` plays one request and tells its outcome.

    ``cancel`` asks the admin API to stop a request, and tells whether it was in flight.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        seed: int,
        references: list[Reference],
        context_tokens: int,
        cancel: Callable[[str], Any],
    ) -> None:
        self._url = url
        self._key = key
        self._seed = seed
        self._references = references
        self._bad = bad_requests(context_tokens)
        self._cancel = cancel
        self._talks: dict[int, list[Body]] = {}
        self._talks_begun = 0
        self._last_response: dict[int, str] = {}
        self._session: aiohttp.ClientSession | None = None
        self._kinds: dict[str, tuple[int, Callable[..., Any]]] = {
            "reference": (18, self._reference),
            "talk": (20, self._talk),
            "chat": (14, self._chat),
            "completion": (10, self._completion),
            "messages": (10, self._messages),
            "responses": (8, self._responses),
            "constrained": (3, self._constrained),
            "leave": (8, self._leave),
            "half": (1, self._half),
            "cancel": (2, self._cancelled),
            "bad": (6, self._refused),
        }

    async def open(self) -> None:
        """Connect anew."""
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=PATIENCE_SECONDS),
            connector=aiohttp.TCPConnector(limit=0),
        )

    async def close(self) -> None:
        """Leave no connection open."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def run(self, number: int, worker: int) -> Outcome:
        """Play request ``number`` as one of the workers, each of which has a conversation."""
        rng = random.Random(f"{self._seed} {number}")  # noqa: S311 - fixed, not secret
        weights = [weight for weight, _ in self._kinds.values()]
        kind = rng.choices(list(self._kinds), weights)[0]
        outcome = Outcome(number, kind, "", f"soak-{self._seed}-{number}", 1, "done")
        try:
            await self._kinds[kind][1](outcome, rng, worker)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, LookupError) as error:
            outcome.problem = f"{type(error).__name__}: {error}"
        return outcome

    # Ordinary requests.

    async def _reference(self, outcome: Outcome, rng: random.Random, worker: int) -> None:
        reference = rng.choice(self._references)
        body = {**reference.body, "prompt_cache_key": rng.choice(("one", "two", ""))}
        await self._ask(outcome, rng, reference.path, body)
        if outcome.answer is not None and outcome.answer.text != reference.text:
            told = f"{outcome.answer.text!r}, expected {reference.text!r}"
            outcome.problem = outcome.problem or f"another answer than cold: {told}"

    async def _talk(self, outcome: Outcome, rng: random.Random, worker: int) -> None:
        talk = self._talks.get(worker, [])
        if not talk or sum(len(m["content"]) for m in talk) > _TALK_CHARACTERS:
            self._talks_begun += 1
            talk = [{"role": "system", "content": rng.choice(SYSTEMS)}]
        talk = [*talk, {"role": "user", "content": words(rng, rng.randint(2, 12))}]
        body = {
            "messages": talk,
            "max_tokens": rng.randint(4, 24),
            "temperature": 0,
            "prompt_cache_key": f"talk-{worker}",
        }
        await self._ask(outcome, rng, CHAT, body)
        if outcome.answer is not None:
            self._talks[worker] = [*talk, {"role": "assistant", "content": outcome.answer.text}]

    async def _chat(self, outcome: Outcome, rng: random.Random, worker: int) -> None:
        messages = [{"role": "user", "content": words(rng, rng.choice((2, 10, 40, 120)))}]
        if rng.random() < 0.7:
            messages.insert(0, {"role": "system", "content": rng.choice(SYSTEMS)})
        body = {"messages": messages, "max_tokens": rng.randint(1, 24), **self._sampling(rng)}
        if rng.random() < 0.2:
            body |= {"logprobs": True, "top_logprobs": 3}
        await self._ask(outcome, rng, CHAT, body)

    async def _completion(self, outcome: Outcome, rng: random.Random, worker: int) -> None:
        body = {"max_tokens": rng.randint(1, 24), **self._sampling(rng)}
        body["prompt"] = words(rng, rng.choice((1, 10, 40, 120)))
        if rng.random() < 0.2:
            body["n"] = outcome.sequences = 2
        elif rng.random() < 0.1:
            body["prompt"] = [words(rng, 5), words(rng, 15)]
            outcome.sequences = 2
        await self._ask(outcome, rng, COMPLETIONS, body)

    async def _messages(self, outcome: Outcome, rng: random.Random, worker: int) -> None:
        body = {
            "model": "any",
            "messages": [{"role": "user", "content": words(rng, rng.choice((2, 20, 80)))}],
            "max_tokens": rng.randint(1, 24),
            "temperature": rng.choice((0, 1)),
        }
        if rng.random() < 0.5:
            body["system"] = rng.choice(SYSTEMS)
        await self._ask(outcome, rng, MESSAGES, body)

    async def _responses(self, outcome: Outcome, rng: random.Random, worker: int) -> None:
        body = {"input": words(rng, rng.choice((2, 20))), "max_output_tokens": rng.randint(1, 24)}
        before = self._last_response.pop(worker, "")
        if before and rng.random() < 0.7:
            body["previous_response_id"] = before
        await self._ask(outcome, rng, RESPONSES, body)
        if outcome.answer is not None and rng.random() < 0.8:
            self._last_response[worker] = outcome.answer.response_id

    async def _constrained(self, outcome: Outcome, rng: random.Random, worker: int) -> None:
        schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        body = {"messages": [{"role": "user", "content": words(rng, 4)}], "max_tokens": 24}
        await self._ask(outcome, rng, CHAT, {**body, "response_format": form, "temperature": 0})

    # Those that do not come to their end.

    async def _leave(self, outcome: Outcome, rng: random.Random, worker: int) -> None:
        outcome.path, outcome.ended = rng.choice((CHAT, COMPLETIONS, MESSAGES, RESPONSES)), "left"
        text = words(rng, rng.choice((3, 40, 150)))
        body: Body = {"model": "any", "max_tokens": 64, "stream": rng.random() < 0.7}
        if outcome.path == COMPLETIONS:
            body["prompt"] = text
        elif outcome.path == RESPONSES:
            body = {"input": text, "max_output_tokens": 64, "stream": body["stream"]}
        else:
            body["messages"] = [{"role": "user", "content": text}]
        after_events = rng.choice((0, 1, 2, 5, 10)) if body["stream"] else None
        if after_events is None or rng.random() < 0.3:
            try:
                async with asyncio.timeout(rng.choice((0.001, 0.01, 0.05, 0.2))):
                    async with self._post(outcome, body) as response:
                        await response.read()
            except TimeoutError:
                pass
            return
        async with self._post(outcome, body) as response:
            answer, seen = Answer(), 0
            async for _ in read_stream(outcome.path, response.content, answer):
                seen += 1
                if seen > after_events:
                    break
            response.close()

    async def _half(self, outcome: Outcome, rng: random.Random, worker: int) -> None:
        """A client that leaves within its request: nobody has asked anything."""
        outcome.ended, outcome.sequences = "refused", 0
        host, _, port = self._url.removeprefix("http://").rpartition(":")
        content = json.dumps({"prompt": words(rng, 50)}).encode()
        head = (
            f"POST {COMPLETIONS} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {self._key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        ).encode()
        whole = head + content
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(whole[: rng.randrange(1, len(whole) - 1)])
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def _cancelled(self, outcome: Outcome, rng: random.Random, worker: int) -> None:
        """Stopped through the admin API, after its first word."""
        outcome.path = COMPLETIONS
        body = {"prompt": words(rng, 10), "max_tokens": 600, "ignore_eos": True, "stream": True}
        answer = Answer()
        async with self._post(outcome, body) as response:
            asked = False
            async for _ in read_stream(outcome.path, response.content, answer):
                if not asked:
                    asked = True
                    if await self._cancel(outcome.request_id):
                        outcome.ended = "cancelled"
        expected = "request_cancelled" if outcome.ended == "cancelled" else ""
        if answer.error != expected:
            outcome.problem = f"the stream ended with {answer.error!r}, expected {expected!r}"

    async def _refused(self, outcome: Outcome, rng: random.Random, worker: int) -> None:
        bad = rng.choice(self._bad)
        outcome.path, outcome.ended, outcome.sequences = bad.path, "refused", 0
        headers = {**self._headers(outcome), **bad.headers}
        async with self._connected().request(
            bad.method, self._url + bad.path, data=bad.content, headers=headers
        ) as response:
            text = await response.text()
            if response.status != bad.status:
                outcome.problem = f"status {response.status}, expected {bad.status}: {text[:200]}"
            elif "error" not in json.loads(text):
                outcome.problem = f"a refusal without an error: {text[:200]}"

    # How they ask.

    async def _ask(self, outcome: Outcome, rng: random.Random, path: str, body: Body) -> None:
        outcome.path = path
        stream = rng.random() < 0.6
        if stream:
            body = {**body, "stream": True}
            if path in (CHAT, COMPLETIONS):
                body["stream_options"] = {"include_usage": True}
        began = time.perf_counter()
        async with self._post(outcome, body) as response:
            if response.status != 200:
                outcome.problem = f"status {response.status}: {(await response.text())[:200]}"
                return
            if stream:
                answer = Answer()
                async for _ in read_stream(path, response.content, answer):
                    if answer.text and outcome.ttft is None:
                        outcome.ttft = time.perf_counter() - began
            else:
                answer = read_whole(path, await response.json())
        if response.headers.get("X-Request-Id") != outcome.request_id:
            outcome.problem = "another X-Request-Id than was sent"
        elif answer.error or not answer.complete or answer.usage is None:
            outcome.problem = f"the answer has no end: {answer}"
        elif len(answer.reasons) != outcome.sequences:
            outcome.problem = f"{outcome.sequences} choices were asked for: {answer}"
        outcome.answer = answer

    def _post(self, outcome: Outcome, body: Body) -> Any:
        url = self._url + outcome.path
        return self._connected().post(url, json=body, headers=self._headers(outcome))

    def _headers(self, outcome: Outcome) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}", "X-Request-Id": outcome.request_id}

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("open() comes first")
        return self._session

    @staticmethod
    def _sampling(rng: random.Random) -> Body:
        if rng.random() < 0.5:
            return {"temperature": 0}
        chosen: Body = {"temperature": rng.choice((0.5, 1.0)), "seed": rng.randrange(1000)}
        extra = rng.choice(({}, {"top_p": 0.9}, {"top_k": 20}, {"presence_penalty": 0.5}))
        return {**chosen, **extra, "stop": ["zz"] if rng.random() < 0.2 else None}
