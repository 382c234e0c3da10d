"""The openai client from the registry, unchanged, against the application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from api_harness import ScriptedEngine, delta, open_api, say
from mlxceld.api.keys import ApiKeys
from mlxceld.config import Settings
from mlxceld.engine.engine import Engine
from mlxceld.engine.events import Failed, FailureKind, Usage

MakeSettings = Callable[..., Settings]
Until = Callable[[Callable[[], Any]], Any]
MESSAGES: list[Any] = [{"role": "user", "content": "Hello"}]
GREEDY: dict[str, Any] = {
    "model": "any",
    "temperature": 0,
    "max_tokens": 10,
    "extra_body": {"ignore_eos": True},
}


@pytest.fixture
async def base_url(engine: Engine, settings: MakeSettings, tmp_path: Path) -> AsyncIterator[str]:
    file = tmp_path / "keys"
    file.write_text("laptop: sk-one\n")
    file.chmod(0o600)
    async with open_api(engine, settings(), ApiKeys(file)) as client:
        yield str(client.make_url("/v1"))


@pytest.fixture
async def ai(base_url: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=base_url, api_key="sk-one", max_retries=0) as client:
        yield client


async def test_chat(ai: AsyncOpenAI) -> None:
    whole = await ai.chat.completions.create(messages=MESSAGES, **GREEDY)
    text = whole.choices[0].message.content
    assert text
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 10
    assert whole.usage.prompt_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens is not None
    parts, counts = [], []
    stream = await ai.chat.completions.create(
        messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    async for chunk in stream:
        parts += [choice.delta.content or "" for choice in chunk.choices]
        counts += [chunk.usage] if chunk.usage else []
    assert "".join(parts) == text
    assert [usage.completion_tokens for usage in counts] == [10]


async def test_the_clients_own_stream_helper(ai: AsyncOpenAI) -> None:
    warm: dict[str, Any] = {**GREEDY, "temperature": 1.0, "seed": 7}
    text = (await ai.chat.completions.create(messages=MESSAGES, **warm)).choices[0].message.content
    assert text
    stop = text[4:6]
    # The helper takes an answer that meets its limit for an error, so this one meets its stop.
    async with ai.chat.completions.stream(messages=MESSAGES, stop=stop, **warm) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == text[: text.index(stop)]
    assert final.choices[0].finish_reason == "stop"


async def test_logprobs_seed_and_stop(ai: AsyncOpenAI) -> None:
    warm = {**GREEDY, "temperature": 1.0, "seed": 7}
    first = await ai.chat.completions.create(
        messages=MESSAGES, logprobs=True, top_logprobs=2, **warm
    )
    second = await ai.chat.completions.create(messages=MESSAGES, **warm)
    text = first.choices[0].message.content
    assert text == second.choices[0].message.content
    assert first.choices[0].logprobs is not None
    entries = first.choices[0].logprobs.content
    assert entries is not None
    assert [len(entry.top_logprobs) for entry in entries] == [2] * 10
    assert text
    stopped = await ai.chat.completions.create(messages=MESSAGES, stop=[text[4:6]], **warm)
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].message.content == text[: text.index(text[4:6])]


async def test_completions(ai: AsyncOpenAI) -> None:
    whole = await ai.completions.create(prompt=["ab", "cd"], logprobs=1, **GREEDY)
    stream = await ai.completions.create(prompt=["ab", "cd"], logprobs=1, stream=True, **GREEDY)
    texts = {0: "", 1: ""}
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert [choice.text for choice in whole.choices] == [texts[0], texts[1]]
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert len(logprobs.tokens) == 10


async def test_models(ai: AsyncOpenAI) -> None:
    assert [model.id async for model in ai.models.list()] == ["llama"]
    assert (await ai.models.retrieve("llama")).owned_by == "mlxceld"
    with pytest.raises(openai.NotFoundError) as missing:
        await ai.models.retrieve("other")
    assert missing.value.code == "model_not_found"


async def test_errors_are_the_clients_own(ai: AsyncOpenAI, base_url: str) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await ai.chat.completions.create(messages=MESSAGES, model="any", temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        await ai.chat.completions.create(
            messages=[{"role": "user", "content": "x" * 999}], model="any"
        )
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        await ai.embeddings.create(input="x", model="any")
    async with AsyncOpenAI(base_url=base_url, api_key="sk-wrong") as stranger:
        with pytest.raises(openai.AuthenticationError) as wrong:
            await stranger.chat.completions.create(messages=MESSAGES, model="any")
        assert wrong.value.code == "invalid_api_key"


async def test_a_stream_that_is_closed_frees_its_place(
    ai: AsyncOpenAI, engine: Engine, until: Until
) -> None:
    stream = await ai.chat.completions.create(
        messages=MESSAGES, stream=True, **{**GREEDY, "max_tokens": 480}
    )
    first = await anext(aiter(stream))
    assert first.choices[0].delta.role == "assistant"
    await stream.close()
    await until(lambda: not engine.status.requests)


async def test_the_blocking_client(base_url: str) -> None:
    def ask() -> tuple[str | None, str]:
        with OpenAI(base_url=base_url, api_key="sk-one", max_retries=0) as ai:
            whole = ai.chat.completions.create(messages=MESSAGES, **GREEDY)
            stream = ai.chat.completions.create(messages=MESSAGES, stream=True, **GREEDY)
            told = [c.choices[0].delta.content or "" for c in stream]
        return whole.choices[0].message.content, "".join(told)

    whole, streamed = await asyncio.to_thread(ask)
    assert whole == streamed


async def test_an_error_amid_a_stream_is_raised(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    scripted.on_submit = lambda stream: say(
        stream, delta("a"), Failed(FailureKind.ENGINE, "boom", Usage(1, 1, 0))
    )
    async with open_api(scripted, settings()) as client:
        url = str(client.make_url("/v1"))
        async with AsyncOpenAI(base_url=url, api_key="none") as ai:
            stream = await ai.chat.completions.create(messages=MESSAGES, model="m", stream=True)
            told: list[str | None] = []

            async def read() -> None:
                async for chunk in stream:
                    told.append(chunk.choices[0].delta.content)

            with pytest.raises(openai.APIError) as failed:
                await read()
    assert told == ["", "a"]
    assert "boom" in failed.value.message
    assert json.loads(json.dumps(failed.value.body))["code"] == "engine_fault"
