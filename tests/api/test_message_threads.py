"""Threads that the vendor's server keeps, refused so that its SDK sends the whole conversation."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from anthropic import AsyncAnthropic, beta_async_tool

from api_harness import ScriptedEngine, delta, finished, open_api, say
from mlxceld.config import Settings
from mlxceld.engine.stream import EventStream

ASK: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "How is it in Bern?"}],
}


@beta_async_tool
async def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain over {city}"


@pytest.fixture
async def told(
    scripted: ScriptedEngine, settings: Callable[..., Settings]
) -> AsyncIterator[tuple[Any, ScriptedEngine]]:
    scripted.on_submit = lambda stream: say(stream, delta("Rain."), finished())
    async with open_api(scripted, settings()) as client:
        yield client, scripted


@pytest.mark.parametrize("route", ["/v1/messages", "/v1/messages?beta=true"])
@pytest.mark.parametrize(
    "thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}]
)
async def test_a_thread_is_refused_in_the_form_that_the_sdk_knows(
    told: tuple[Any, ScriptedEngine], route: str, thread: dict[str, Any]
) -> None:
    client, engine = told
    response = await client.post(route, json={**ASK, "thread": thread})
    body = await response.json()
    message = body["error"].pop("message")
    assert (response.status, body) == (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "details": {
                    "error_code": "thread_unsupported_request",
                    "unsupported": ["thread"],
                },
            },
        },
    )
    assert message.startswith("thread is an object, expected null")
    assert not engine.requests


async def test_without_a_thread_there_are_no_details(told: tuple[Any, ScriptedEngine]) -> None:
    client, _ = told
    answer = await client.post("/v1/messages", json={**ASK, "thread": None})
    assert (await answer.json())["content"] == [{"type": "text", "text": "Rain."}]
    refused = await client.post("/v1/messages", json={**ASK, "max_tokens": 0})
    assert list((await refused.json())["error"]) == ["type", "message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_sdks_tool_runner_works_to_the_end(
    told: tuple[Any, ScriptedEngine], *, stream: bool
) -> None:
    client, engine = told
    call = {"name": "weather", "arguments": {"city": "Bern"}}

    def answer(one: EventStream) -> None:
        prompt = engine.text.decode(engine.requests[-1].tokens)
        known = "rain over Bern" in prompt
        text = "It rains." if known else f"<tool_call>{json.dumps(call)}</tool_call>"
        say(one, delta(text), finished())

    engine.on_submit = answer
    url = str(client.make_url("/"))
    async with AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as ai:
        runner: Any = ai.beta.messages.tool_runner(
            **ASK, tools=[weather], stream=stream, max_iterations=4
        )
        final = await runner.until_done()
    assert [block.text for block in final.content] == ["It rains."]
    assert final.stop_reason == "end_turn"
    assert len(engine.requests) == 2
    first, second = (engine.text.decode(request.tokens) for request in engine.requests)
    assert "How is it in Bern?" in first
    assert "How is it in Bern?" in second
