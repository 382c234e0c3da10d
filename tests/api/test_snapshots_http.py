"""Conversations with models that resume at snapshots, as a client of the public API sees them."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from api_harness import open_api
from chat_templates import CHATML, QWEN3_THINKING
from engine_harness import load_tiny, make_settings
from mlxceld.engine.engine import Engine
from mlxceld.prompt_cache.snapshot_store import SnapshotStore
from mlxceld.telemetry.status import EngineState
from tiny_models import TinyModels

FAMILIES = ["qwen3_next", "mamba2", "gemma3_text"]
"""Hybrid, recurrent, windowed."""

TEMPLATES = {"chatml": CHATML, "drops thinking": QWEN3_THINKING}

SYSTEM = "You are a tiny model that has read nothing, and answers all the same."
SESSIONS = ("ann", "bob")
TURNS = 4
CAP = 2 * len(SESSIONS) + 1
"""Two entries a session, and the head that both begin with."""

Open = Callable[..., Any]


@dataclass
class Talk:
    """One conversation as its client keeps it."""

    session: str
    messages: list[dict[str, Any]] = field(
        default_factory=lambda: [{"role": "system", "content": SYSTEM}]
    )
    usages: list[dict[str, Any]] = field(default_factory=list)

    def cached(self) -> int:
        """What the last turn took from the cache."""
        return int(self.usages[-1]["prompt_tokens_details"]["cached_tokens"])


class Server:
    """The API over an engine of its own; ``thinks`` puts a thought before each answer."""

    def __init__(
        self, client: TestClient[Any, Any], engine: Engine, until: Any, *, thinks: bool
    ) -> None:
        self.client, self.engine, self._until = client, engine, until
        self.thinks = thinks

    async def turn(self, talk: Talk, said: str | None = None, **fields: Any) -> str:
        """Say something and take the answer into the conversation."""
        if said is not None:
            talk.messages.append({"role": "user", "content": said})
        body = {"messages": talk.messages, "max_tokens": 8, "temperature": 0, **fields}
        response = await self.client.post(
            "/v1/chat/completions", json={**body, "prompt_cache_key": talk.session}
        )
        answer = await response.json()
        assert response.status == 200, answer
        text = str(answer["choices"][0]["message"]["content"])
        talk.usages.append(answer["usage"])
        thought = "<think>\nHm.\n</think>\n\n" if self.thinks else ""
        talk.messages.append({"role": "assistant", "content": thought + text})
        # What it leaves behind is stored after it has been answered.
        await self._until(lambda: not self.engine.status.busy)
        return text

    async def stats(self) -> dict[str, Any]:
        response = await self.client.get("/v1/cache/stats")
        stats: dict[str, Any] = await response.json()
        return stats

    def generation_prompt(self, talk: Talk) -> int:
        """Tokens that the template writes between the history and the reply."""
        ended = [m for m in talk.messages if m is not talk.messages[-1]]
        with_it, without = (
            self.engine.text.render_chat(ended, add_generation_prompt=generation).tokens
            for generation in (True, False)
        )
        assert talk.usages[-1]["prompt_tokens"] == len(with_it)
        return len(with_it) - len(without)


@pytest.fixture
def serve(
    tiny_models: TinyModels, tmp_path: Path, until: Callable[[Callable[[], Any]], Any]
) -> Iterator[Open]:
    """The API over engines of tiny models with a template."""
    engines: list[Engine] = []

    @asynccontextmanager
    async def start(
        family: str, template: str, prompt_cache: dict[str, Any] | None = None
    ) -> AsyncIterator[Server]:
        folder = tiny_models.folder(family, chat_template=template, context_length=4096)
        cache = {"prefetch": "off", "snapshot_max_entries": CAP, **(prompt_cache or {})}
        settings = make_settings(tmp_path, prompt_cache=cache)
        engine = Engine(settings, lambda _: load_tiny(folder))
        engines.append(engine)
        ready = threading.Event()
        engine.on_state(lambda state, _: ready.set() if state is not EngineState.LOADING else None)
        engine.start()
        assert ready.wait(60)
        assert engine.status.state is EngineState.READY, engine.status.detail
        async with open_api(engine, settings) as client:
            yield Server(client, engine, until, thinks="<think>" in template)

    yield start
    for engine in engines:
        assert engine.stop(30)


@pytest.mark.parametrize(
    ("family", "template"),
    [*((family, "drops thinking") for family in FAMILIES), ("qwen3_next", "chatml")],
)
async def test_conversations_collapse_to_their_newest_turn(
    serve: Open, family: str, template: str
) -> None:
    async with serve(family, TEMPLATES[template]) as server:
        talks = [Talk(session) for session in SESSIONS]
        superseded = 0
        for number in range(TURNS):
            for talk in talks:
                before = talk.usages[-1]["prompt_tokens"] if talk.usages else 0
                await server.turn(talk, f"This is what {talk.session} says in turn {number}.")
                stats = await server.stats()
                assert stats["snapshot_entries_boundary"] <= len(SESSIONS)
                assert stats["snapshot_entries_completion"] <= len(SESSIONS)
                assert stats["snapshot_entries_head"] == 1
                assert stats["snapshot_evictions_lru"] == 0
                if number:
                    assert talk.cached() >= before - server.generation_prompt(talk)
                    assert stats["snapshot_supersedes"] > superseded
                superseded = stats["snapshot_supersedes"]
        assert stats["snapshot_hits"] == 2 * TURNS - 1
        assert stats["snapshot_entries"] <= CAP
        assert stats["reject_oversized"] == stats["insert_rejects"] == 0


@pytest.mark.parametrize("family", FAMILIES)
async def test_without_supersede_the_turns_push_each_other_out(
    serve: Open, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SnapshotStore, "_supersede", lambda *_, **__: None)
    async with serve(family, CHATML) as server:
        talks = [Talk(session) for session in SESSIONS]
        evicted = []
        for number in range(TURNS):
            for talk in talks:
                await server.turn(talk, f"This is what {talk.session} says in turn {number}.")
            stats = await server.stats()
            evicted.append(stats["snapshot_evictions_lru"])
        assert stats["snapshot_entries"] == CAP
        assert stats["snapshot_supersedes"] == 0
        assert evicted[-1] > evicted[-2] > 0


@pytest.mark.parametrize("family", FAMILIES)
async def test_an_edited_message_is_computed_from_the_head_on(serve: Open, family: str) -> None:
    async with serve(family, QWEN3_THINKING) as server:
        talk = Talk("ann")
        for number in range(3):
            await server.turn(talk, f"This is turn {number}.")
        head = server.engine.text.render_chat(talk.messages[:2], with_boundaries=True).boundaries[0]
        assert head.kind == "head"
        talk.messages = [*talk.messages[:1], {"role": "user", "content": "No, this."}]
        answer = await server.turn(talk)
        assert talk.cached() == head.tokens
        edited = talk.usages[-1]["prompt_tokens"]
        last = await server.turn(talk, "And on from there.")
        assert talk.cached() >= edited - server.generation_prompt(talk)
    async with serve(family, QWEN3_THINKING, {"enabled": False}) as cold:
        again = Talk("ann")
        assert await cold.turn(again, "No, this.") == answer
        assert await cold.turn(again, "And on from there.") == last
        assert again.cached() == 0


async def test_a_second_session_goes_on_from_the_head(serve: Open) -> None:
    async with serve("qwen3_next", CHATML) as server:
        first, second = Talk("ann"), Talk("bob")
        await server.turn(first, "One thing.")
        await server.turn(second, "Another thing.")
        assert first.cached() == 0
        assert second.cached() >= len(SYSTEM)


async def test_tool_results_go_on_from_the_turn_before(serve: Open) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    async with serve("qwen3_next", QWEN3_THINKING) as server:
        talk = Talk("ann")
        await server.turn(talk, "What is there?", tools=tools)
        for number in range(3):
            before = talk.usages[-1]["prompt_tokens"]
            talk.messages[-1] = {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": f"call{number}",
                        "type": "function",
                        "function": {"name": "look", "arguments": "{}"},
                    }
                ],
            }
            talk.messages.append(
                {"role": "tool", "tool_call_id": f"call{number}", "content": f"Thing {number}."}
            )
            await server.turn(talk, tools=tools)
            assert talk.cached() >= before - len("<|im_start|>assistant\n<think>\n")
        stats = await server.stats()
        assert stats["snapshot_evictions_lru"] == 0


async def test_raw_prompts_resume_where_they_ended(serve: Open) -> None:
    async with serve("qwen3_next", CHATML) as server:
        prompt = "Once upon a time there was a model that remembered"
        for expected in (0, len(prompt) - 1):
            response = await server.client.post(
                "/v1/completions", json={"prompt": prompt, "max_tokens": 4, "temperature": 0}
            )
            usage = (await response.json())["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == expected


async def test_what_limits_the_store_is_shown(serve: Open) -> None:
    limits = {
        "snapshot_capacity_bytes": 40_000_000,
        "snapshot_max_entries": 7,
        "snapshot_ttl": 123.0,
    }
    async with serve("qwen3_next", CHATML, limits) as server:
        await server.turn(Talk("ann"), "Hello.")
        stats = await server.stats()
        assert stats["snapshot_enabled"]
        assert stats["snapshot_capacity_bytes"] == 40_000_000
        assert (stats["snapshot_max_entries"], stats["snapshot_ttl_seconds"]) == (7, 123)
        assert 0 < stats["snapshot_bytes"] == stats["cache_bytes_total"]
        model = server.engine.status.model
        assert model is not None
        assert (model.reuse, model.reuse_reason) == ("snapshots", "")
