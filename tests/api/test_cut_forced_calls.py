"""Forced calls that the limit cuts at every place, in every dialect, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from api_harness import open_api
from mlxceld.config import Settings
from mlxceld.engine.engine import Engine

MakeSettings = Callable[..., Settings]
HELLO = [{"role": "user", "content": "Hello"}]
PARAMETERS = {
    "type": "object",
    "properties": {"where": {"enum": ["up", "down"]}},
    "required": ["where"],
}
HEAD = '{"name": "look", "arguments": '
LIMITS = (5, len(HEAD) - 1, len(HEAD), len(HEAD) + 4, 80)
"""Before the name's end to the whole call; the model's tokens are single characters, mostly."""


@pytest.fixture
async def client(engine: Engine, settings: MakeSettings) -> AsyncIterator[TestClient[Any, Any]]:
    async with open_api(engine, settings()) as found:
        yield found


async def whole(client: TestClient[Any, Any], path: str, body: dict[str, Any]) -> Any:
    response = await client.post(path, json=body)
    assert response.status == 200, await response.text()
    return await response.json()


async def events(client: TestClient[Any, Any], path: str, body: dict[str, Any]) -> list[Any]:
    response = await client.post(path, json={**body, "stream": True})
    assert response.status == 200, await response.text()
    lines = (await response.text()).splitlines()
    found = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    return [json.loads(line) for line in found]


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("limit", LIMITS)
async def test_chat_has_the_arguments_that_came(client: TestClient[Any, Any], limit: int) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}
    body = {
        "messages": HELLO,
        "tools": [tool],
        "tool_choice": "required",
        "max_tokens": limit,
        "temperature": 0,
    }
    choice = (await whole(client, "/v1/chat/completions", body))["choices"][0]
    chunks = [one for one in await events(client, "/v1/chat/completions", body) if one["choices"]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    functions = [call["function"] for one in deltas for call in one.get("tool_calls", ())]
    calls = choice["message"].get("tool_calls") or []
    assert not choice["message"]["content"]
    assert not any(one.get("content") for one in deltas)
    assert [call["function"]["name"] for call in calls] == [
        function["name"] for function in functions if function.get("name")
    ]
    arguments = "".join(function["arguments"] for function in functions)
    assert "".join(call["function"]["arguments"] for call in calls) == arguments
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    assert choice["finish_reason"] == ("tool_calls" if limit == 80 else "length")
    assert is_json(arguments) == (limit == 80)
    assert bool(calls) == (limit >= len(HEAD))


@pytest.mark.parametrize("limit", LIMITS)
async def test_free_text_that_is_cut_is_no_call(client: TestClient[Any, Any], limit: int) -> None:
    body = {
        "messages": HELLO,
        "tools": [{"type": "custom", "custom": {"name": "look"}}],
        "tool_choice": "required",
        "max_tokens": min(limit, 40),
        "temperature": 0,
    }
    choice = (await whole(client, "/v1/chat/completions", body))["choices"][0]
    chunks = [one for one in await events(client, "/v1/chat/completions", body) if one["choices"]]
    assert choice["finish_reason"] == "length"
    assert not choice["message"]["content"]
    assert not choice["message"].get("tool_calls")
    for chunk in chunks:
        assert not chunk["choices"][0]["delta"].get("tool_calls")
        assert not chunk["choices"][0]["delta"].get("content")


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_message_has_whole_input_or_none(client: TestClient[Any, Any], limit: int) -> None:
    body = {
        "model": "m",
        "messages": HELLO,
        "tools": [{"name": "look", "input_schema": PARAMETERS}],
        "tool_choice": {"type": "any"},
        "max_tokens": limit,
        "temperature": 0,
    }
    message = await whole(client, "/v1/messages", body)
    blocks = [block for block in message["content"] if block["type"] == "tool_use"]
    assert not any(block.get("text") for block in message["content"])
    assert message["stop_reason"] == ("tool_use" if limit == 80 else "max_tokens")
    assert [set(block["input"]) for block in blocks] == ([{"where"}] if limit == 80 else [])
    streamed = await events(client, "/v1/messages", body)
    begun = [one for one in streamed if one["type"] == "content_block_start"]
    assert [one["content_block"]["type"] for one in begun] == (
        ["tool_use"] if limit >= len(HEAD) else ["text"]
    )


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_response_has_the_arguments_that_came(
    client: TestClient[Any, Any], limit: int
) -> None:
    body = {
        "input": "Hello",
        "tools": [{"type": "function", "name": "look", "parameters": PARAMETERS}],
        "tool_choice": "required",
        "max_output_tokens": max(limit, 16),
        "temperature": 0,
    }
    response = await whole(client, "/v1/responses", body)
    last = (await events(client, "/v1/responses", body))[-1]["response"]
    assert response["status"] == last["status"] == ("completed" if limit == 80 else "incomplete")

    def calls(of: Any) -> list[tuple[str, str, str]]:
        items = [item for item in of["output"] if item["type"] == "function_call"]
        return [(item["name"], item["arguments"], item["status"]) for item in items]

    assert calls(response) == calls(last)
    assert bool(calls(response)) == (limit >= len(HEAD))
    assert all(is_json(one[1]) == (limit == 80) for one in calls(response))
    texts = [part["text"] for item in response["output"] for part in item.get("content", ())]
    assert not any(texts)
