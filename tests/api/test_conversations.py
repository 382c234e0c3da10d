"""Whole conversations over HTTP on tiny models: what each turn computes again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from api_harness import open_api
from chat_templates import CHATML, GLM4, QWEN3, QWEN3_THINKING, call, tool
from engine_harness import load_tiny, make_settings
from mlxceld.config import Settings
from mlxceld.engine import prefetch
from mlxceld.engine.engine import Engine
from mlxceld.engine.request import NextTurn
from mlxceld.models.text import TextCodec
from mlxceld.telemetry.status import EngineState
from tiny_models import TinyModels

Until = Callable[[Callable[[], Any]], Any]

TEMPLATES = {"chatml": CHATML, "qwen3": QWEN3, "thinking": QWEN3_THINKING, "glm4": GLM4}

PAIRS = [
    *(("qwen3_next", template) for template in TEMPLATES),
    ("mamba2", "thinking"),
    ("gemma3_text", "qwen3"),
]
"""A hybrid, a recurrent and a windowed family."""

SYSTEM = {"role": "system", "content": "You are a helpful assistant. " * 3}


@contextmanager
def running(folder: Path, settings: Settings) -> Iterator[Engine]:
    engine = Engine(settings, lambda _: load_tiny(folder), on_battery=lambda: False)
    ready = threading.Event()
    engine.on_state(lambda state, _: ready.set() if state is not EngineState.LOADING else None)
    engine.start()
    assert ready.wait(60)
    assert engine.status.state is EngineState.READY, engine.status.detail
    try:
        yield engine
    finally:
        assert engine.stop(30)


async def ask(
    client: Any, messages: list[dict[str, Any]], session: str, **more: Any
) -> tuple[str, int, int]:
    """The reply, the prompt's tokens and how many of them were reused."""
    response = await client.post(
        "/v1/chat/completions",
        json={
            "messages": messages,
            "prompt_cache_key": session,
            "temperature": 0,
            "max_tokens": 12,
            "ignore_eos": True,
            **more,
        },
    )
    body = await response.json()
    assert response.status == 200, body
    usage = body["usage"]
    return (
        body["choices"][0]["message"]["content"],
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
    )


def history_tokens(codec: TextCodec, messages: list[dict[str, Any]]) -> int:
    """A prompt's tokens less its generation prompt."""
    return len(codec.render_chat(messages, add_generation_prompt=False).tokens)


@pytest.mark.parametrize(("family", "template"), PAIRS)
async def test_every_turn_goes_on_from_the_history_before_it(
    family: str, template: str, tiny_models: TinyModels, tmp_path: Path
) -> None:
    folder = tiny_models.folder(family, chat_template=TEMPLATES[template], context_length=4096)
    settings = make_settings(
        tmp_path, prompt_cache={"prefetch": "off", "snapshot_max_entries": 5, "min_prefix": 8}
    )
    with running(folder, settings) as engine:
        codec = engine.text
        async with open_api(engine, settings) as client:
            talks: dict[str, list[dict[str, Any]]] = {"one": [SYSTEM], "two": [SYSTEM]}
            before: dict[str, int] = {}
            supersedes = 0
            for number in range(4):
                for session, messages in talks.items():
                    messages.append({"role": "user", "content": f"{session} asks {number}"})
                    history = history_tokens(codec, messages)
                    text, _, cached = await ask(client, messages, session)
                    if session in before:
                        assert cached >= before[session]
                    before[session] = history
                    thought = f"<think>\n{text}\n</think>\n\n" if template != "chatml" else ""
                    messages.append({"role": "assistant", "content": f"{thought}{text}"})
                stats = engine.status.cache
                assert stats.snapshot_entries_boundary <= 2
                assert stats.snapshot_entries_completion <= 2
                assert stats.snapshot_evictions_lru == 0
                assert number == 0 or stats.snapshot_supersedes > supersedes
                supersedes = stats.snapshot_supersedes
            # An edited message: once from the head, which is the system text.
            edited = [*talks["one"][:2], {"role": "assistant", "content": "no"}]
            edited += [{"role": "user", "content": "and now?"}]
            edited[1] = {"role": "user", "content": "something else"}
            prompt = codec.render_chat(edited, with_boundaries=True)
            head = next(mark.tokens for mark in prompt.boundaries if mark.kind == "head")
            text, _, cached = await ask(client, edited, "one")
            assert cached == head
            edited += [{"role": "assistant", "content": text}, {"role": "user", "content": "so"}]
            _, _, cached = await ask(client, edited, "one")
            assert cached >= history_tokens(codec, edited[:-2])


@pytest.mark.parametrize(
    ("family", "template"),
    [("llama", "chatml"), ("llama", "thinking"), ("qwen3_next", "thinking"), ("mamba2", "qwen3")],
)
async def test_after_idling_a_turn_computes_only_what_the_user_typed(
    family: str, template: str, tiny_models: TinyModels, tmp_path: Path, until: Until
) -> None:
    folder = tiny_models.folder(family, chat_template=TEMPLATES[template], context_length=4096)
    settings = make_settings(tmp_path, prompt_cache={"prefetch": "auto", "min_prefix": 8})
    with running(folder, settings) as engine:
        checked = engine.status.cache.background_tokens_computed  # at load
        codec = engine.text
        async with open_api(engine, settings) as client:
            messages: list[dict[str, Any]] = [SYSTEM]
            for number in range(3):
                typed = {"role": "user", "content": f"question {number}"}
                messages.append(typed)
                text, total, cached = await ask(client, messages, "one")
                if number:
                    alone = len(codec.render_chat([SYSTEM, typed]).tokens)
                    system = len(
                        codec.render_chat([SYSTEM, {"role": "user", "content": ""}]).tokens
                    )
                    generation = total - history_tokens(codec, messages)
                    assert total - cached <= (alone - system) + generation + 8
                done = number + 1

                def idle(done: int = done) -> bool:
                    stats = engine.status.cache
                    return stats.prefetch_run + stats.prefetch_skipped >= done

                await until(idle)
                # As a client keeps it, and as a template may drop it.
                messages.append({"role": "assistant", "content": text})
            stats = engine.status.cache
            assert stats.prefetch_run >= 2
            assert stats.background_tokens_computed - checked == stats.prefetch_tokens > 0
            assert stats.prompt_tokens == stats.prompt_tokens_computed + stats.prompt_tokens_reused


async def test_tool_results_go_on_from_the_call(tiny_models: TinyModels, tmp_path: Path) -> None:
    folder = tiny_models.folder("qwen3_next", chat_template=QWEN3, context_length=4096)
    settings = make_settings(tmp_path, prompt_cache={"prefetch": "off", "min_prefix": 8})
    with running(folder, settings) as engine:
        codec, tools = engine.text, [tool("look")]
        async with open_api(engine, settings) as client:
            messages: list[dict[str, Any]] = [SYSTEM, {"role": "user", "content": "weather?"}]
            before = 0
            for number in range(3):
                rendered = codec.render_chat(messages, tools=tools, add_generation_prompt=False)
                _, _, cached = await ask(client, messages, "one", tools=tools)
                assert cached >= before
                before = len(rendered.tokens)
                messages += [
                    {
                        "role": "assistant",
                        "content": "<think>\nhm\n</think>\n\n",
                        "tool_calls": [call("look", f"there {number}")],
                    },
                    {"role": "tool", "tool_call_id": "call00001", "content": "sunny"},
                ]
            # The next turn of the user drops what was thought, and goes on before it.
            first = codec.render_chat(messages[:2], tools=tools, add_generation_prompt=False)
            messages += [
                {"role": "assistant", "content": "warm"},
                {"role": "user", "content": "and there?"},
            ]
            _, _, cached = await ask(client, messages, "one", tools=tools)
            assert cached >= len(first.tokens)


async def test_a_request_comes_before_what_is_prefetched(
    tiny_models: TinyModels, tmp_path: Path, until: Until
) -> None:
    folder = tiny_models.folder("qwen3_next", chat_template=CHATML, context_length=4096)
    settings = make_settings(
        tmp_path, prefill_chunk=16, prompt_cache={"prefetch": "on", "min_prefix": 8}
    )
    with running(folder, settings) as engine:
        checked = engine.status.cache.background_tokens_computed  # at load
        async with open_api(engine, settings) as client:
            long = [{"role": "user", "content": "x" * 300}]
            await ask(client, long, "one", max_tokens=200)
            # Whether it has begun to look ahead or not, another conversation is answered.
            _, _, cached = await ask(client, [{"role": "user", "content": "hi"}], "two")
            assert cached < 60
            await until(lambda: engine.status.cache.prefetch_run == 2)
            stats = engine.status.cache
            assert stats.prefetch_tokens == stats.background_tokens_computed - checked


async def test_switched_off_nothing_is_prefetched(tiny_models: TinyModels, tmp_path: Path) -> None:
    folder = tiny_models.folder("llama", chat_template=CHATML, context_length=4096)
    settings = make_settings(tmp_path, prompt_cache={"prefetch": "off"})
    with running(folder, settings) as engine:
        async with open_api(engine, settings) as client:
            for number in range(3):
                await ask(client, [{"role": "user", "content": f"hi {number}" * 20}], "one")
        stats = engine.status.cache
        assert (stats.prefetch_run, stats.prefetch_skipped, stats.prefetch_tokens) == (0, 0, 0)


async def test_at_most_one_chunk_is_between_a_request_and_its_start(
    tiny_models: TinyModels, tmp_path: Path, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_models.folder("qwen3_next", chat_template=CHATML, context_length=4096)
    settings = make_settings(
        tmp_path, prefill_chunk=16, prompt_cache={"prefetch": "on", "min_prefix": 8}
    )
    inside, go_on = threading.Event(), threading.Event()
    answered_at_chunk: list[int] = []
    compute = prefetch.run_chunk

    def slowly(module: Any, caches: Any, parts: Any) -> None:
        answered_at_chunk.append(engine._publisher.recorder.ended)
        if len(answered_at_chunk) == 2:
            inside.set()
            assert go_on.wait(30)
        compute(module, caches, parts)

    monkeypatch.setattr(prefetch, "run_chunk", slowly)
    with running(folder, settings) as engine:
        async with open_api(engine, settings) as client:
            engine.prefetch(NextTurn(list(range(7, 107)), "one", "raw-prompt"))
            assert await asyncio.to_thread(inside.wait, 30)
            waiting = asyncio.create_task(
                ask(client, [{"role": "user", "content": "hi"}], "two", max_tokens=3, n=1)
            )
            await until(lambda: engine.status.waiting or engine._inbox.asked.submitted)
            go_on.set()
            await waiting
            await until(lambda: engine.status.cache.prefetch_run == 2)
            # The request came while the second chunk was computed, and was answered before a third.
            assert answered_at_chunk[:2] == [0, 0]
            assert set(answered_at_chunk[2:]) == {1}
            assert engine.status.cache.prefetch_tokens > 100
