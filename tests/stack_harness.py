"""A whole daemon in one process but for its process: engine, public API and admin API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from mlxceld.admin.app import PREFIX, create_admin_app
from mlxceld.api.app import create_app, prompts_of
from mlxceld.api.keys import ApiKeys
from mlxceld.config import resolve
from mlxceld.engine.engine import Engine
from mlxceld.models.folder import ModelFolder
from mlxceld.models.loading import load_model
from mlxceld.telemetry.metrics import Metrics
from mlxceld.telemetry.status import EngineState


class Stack:
    """What a test asks of it, as users do."""

    def __init__(self, engine: Engine, public: TestClient[Any, Any], admin: TestClient[Any, Any]):
        self.engine = engine
        self.prompts = prompts_of(public.app)
        self.public = public
        self.admin = admin

    async def complete(self, prompt: str | list[int], **body: Any) -> dict[str, Any]:
        """The answer of ``/v1/completions``, greedy and of 4 tokens unless told otherwise."""
        fields = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **body}
        response = await self.public.post("/v1/completions", json=fields)
        assert response.status == 200, await response.text()
        return await response.json()

    async def chat(self, messages: list[dict[str, Any]], **body: Any) -> dict[str, Any]:
        """The answer of ``/v1/chat/completions``, likewise."""
        fields = {"messages": messages, "max_tokens": 4, "temperature": 0, **body}
        response = await self.public.post("/v1/chat/completions", json=fields)
        assert response.status == 200, await response.text()
        return await response.json()

    async def order(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The admin API's answer."""
        response = await self.admin.request(
            method, f"{PREFIX}/{path}", json={} if body is None and method != "GET" else body
        )
        assert response.status == 200, await response.text()
        return await response.json()

    async def stats(self) -> dict[str, Any]:
        """The public cache statistics, as soon as nothing is in flight."""
        # A round through the engine: what it has left to do with ended requests is done after it.
        await asyncio.wrap_future(self.engine.cache.flush(dry_run=True))
        return await (await self.public.get("/v1/cache/stats")).json()

    async def scrape(self) -> str:
        """The Prometheus text."""
        return await (await self.public.get("/metrics")).text()


def cached(answer: dict[str, Any]) -> int:
    """Prompt tokens that an answer says were taken from the cache."""
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def series(text: str) -> dict[str, float]:
    """A Prometheus text's samples by their name and labels."""
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


@asynccontextmanager
async def open_stack(folder: Path, state_dir: Path, **flags: Any) -> AsyncIterator[Stack]:
    """Start everything over a model folder and wait until it serves; ``flags`` are settings'.

    Nothing is computed ahead unless they say so: what moves a counter is the test's own doing.
    """
    flags = {"prompt_cache.prefetch": "off", **flags}
    resolved = resolve({"state_dir": state_dir, **flags}, environ={}, search=False)
    engine = Engine(
        resolved.settings,
        lambda progress: load_model(
            ModelFolder(path=folder, id="tiny", origin="folder"), progress=progress
        ),
    )
    loop, ready = asyncio.get_running_loop(), asyncio.Event()

    def on_state(state: EngineState, detail: str) -> None:
        if state in (EngineState.READY, EngineState.FAILED):
            loop.call_soon_threadsafe(ready.set)

    engine.on_state(on_state)
    engine.start()
    metrics = Metrics(lambda: engine.status)
    public = create_app(engine, resolved.settings, ApiKeys.none(), metrics_text=metrics.render)
    admin = create_admin_app(engine, prompts_of(public), resolved, drain=engine.drain)
    try:
        async with TestClient(TestServer(public)) as one, TestClient(TestServer(admin)) as two:
            async with asyncio.timeout(120):
                await ready.wait()
            assert engine.status.state is EngineState.READY, engine.status.detail
            yield Stack(engine, one, two)
    finally:
        assert await asyncio.to_thread(engine.stop, 60)
