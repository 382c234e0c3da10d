"""The public API over a real engine, or over one whose events a test writes itself."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from mlxceld.api.app import create_app
from mlxceld.api.keys import ApiKeys
from mlxceld.config import Settings
from mlxceld.engine.errors import EngineError
from mlxceld.engine.events import Delta, Event, Finished, FinishReason, Usage
from mlxceld.engine.request import GenerationRequest
from mlxceld.engine.stream import EventStream
from mlxceld.models.text import TextCodec
from mlxceld.telemetry.status import EngineState, EngineStatus

WALL = 1_700_000_000.5


def metrics_text(accept: str) -> tuple[bytes, str]:
    return f"# for {accept}\n".encode(), "text/plain; version=0.0.4; charset=utf-8"


@asynccontextmanager
async def open_api(
    engine: Any, settings: Settings, keys: ApiKeys | None = None, **options: Any
) -> AsyncIterator[TestClient[Any, Any]]:
    """A client of the application; handlers are cancelled when their client leaves."""
    numbers = itertools.count(1)
    defaults: dict[str, Any] = {
        "metrics_text": metrics_text,
        "wall": lambda: WALL,
        "ids": lambda: f"id{next(numbers)}",
    }
    app = create_app(engine, settings, keys or ApiKeys.none(), **{**defaults, **options})
    async with TestClient(TestServer(app)) as client:
        yield client


class ScriptedEngine:
    """Takes requests and does nothing: a test pushes their events."""

    def __init__(self, text: TextCodec, snapshot: EngineStatus) -> None:
        self.text = text
        self.status = snapshot
        self.requests: list[GenerationRequest] = []
        self.streams: list[EventStream] = []
        self.cancelled: list[str] = []
        self.refusal: EngineError | None = None
        self.on_submit: Callable[[EventStream], None] = lambda _: None
        self.on_cancel: Callable[[str], None] = lambda _: None

    def foretell_with(self, make: Any) -> None:
        pass

    def submit(self, requests: Sequence[GenerationRequest]) -> list[EventStream]:
        if self.refusal is not None:
            raise self.refusal
        streams = [EventStream(request.id, self.cancel) for request in requests]
        self.requests.extend(requests)
        self.streams.extend(streams)
        for stream in streams:
            self.on_submit(stream)
        return streams

    def cancel(self, request_id: str) -> bool:
        self.cancelled.append(request_id)
        self.on_cancel(request_id)
        return True

    def state(self, **changes: Any) -> None:
        self.status = replace(self.status, **{"state": EngineState.READY, **changes})


def say(stream: EventStream, *events: Event) -> None:
    for event in events:
        stream.push(event)


def delta(text: str) -> Delta:
    return Delta(text, (1,))


def finished(
    reason: FinishReason = FinishReason.STOP, prompt: int = 5, completion: int = 2, cached: int = 0
) -> Finished:
    return Finished(reason, Usage(prompt, completion, cached))


def parse_sse(raw: str) -> list[Any]:
    """The data of every event: JSON, or the text ``[DONE]``; comments are left out."""
    found = []
    for block in raw.split("\n\n"):
        if block.startswith("data: "):
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


async def read_sse(response: ClientResponse) -> list[Any]:
    assert response.status == 200, await response.text()
    assert response.content_type == "text/event-stream"
    return parse_sse(await response.text())


def streamed_text(chunks: Sequence[Any], index: int = 0) -> str:
    """The text of one choice, of chat and completion chunks alike."""
    return "".join(
        choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        for chunk in chunks
        if isinstance(chunk, dict)
        for choice in chunk["choices"]
        if choice["index"] == index
    )


async def error_of(response: ClientResponse, status: int) -> dict[str, Any]:
    """The error of a response, whose envelope has to be complete."""
    text = await response.text()
    assert response.status == status, text
    body = json.loads(text)
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert response.headers["X-Request-Id"]
    error: dict[str, Any] = body["error"]
    return error
