"""The routes beside ``POST /v1/responses``, as the openai client calls them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
from aiohttp.test_utils import TestClient
from openai import AsyncOpenAI

from api_harness import ScriptedEngine, delta, error_of, finished, open_api, say
from mlxceld.config import Settings

TOOLS: Any = [{"type": "custom", "name": "edit"}, {"type": "web_search"}]


@pytest.fixture
async def told(
    scripted: ScriptedEngine, settings: Callable[..., Settings]
) -> AsyncIterator[tuple[AsyncOpenAI, ScriptedEngine, TestClient[Any, Any]]]:
    scripted.on_submit = lambda stream: say(stream, delta("Rain."), finished())
    async with (
        open_api(scripted, settings()) as client,
        AsyncOpenAI(base_url=str(client.make_url("/v1")), api_key="k", max_retries=0) as ai,
    ):
        yield ai, scripted, client


Told = tuple[AsyncOpenAI, ScriptedEngine, TestClient[Any, Any]]


async def test_input_tokens_are_those_of_the_prompt(told: Told) -> None:
    ai, engine, _ = told
    body: dict[str, Any] = {
        "input": [{"role": "user", "content": "Weather?"}],
        "instructions": "Be brief.",
        "tools": TOOLS,
        "reasoning": {"effort": "low"},
    }
    counted = await ai.responses.input_tokens.count(model="m", **body)
    assert counted.object == "response.input_tokens"
    assert not engine.requests
    first = await ai.responses.create(model="m", **body)
    assert counted.input_tokens == len(engine.requests[0].tokens)
    longer = {**body, "input": "Why?", "previous_response_id": first.id}
    counted = await ai.responses.input_tokens.count(**longer)
    await ai.responses.create(model="m", **longer)
    assert counted.input_tokens == len(engine.requests[1].tokens)
    alone = await ai.responses.input_tokens.count(instructions="Be brief.")
    assert 0 < alone.input_tokens < counted.input_tokens


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": 3}, "input"),
        ({"input": "x", "conversation": "c"}, "conversation"),
        ({"input": "x", "personality": "friendly"}, "personality"),
        ({"input": "x", "previous_response_id": "resp_x"}, "previous_response_id"),
    ],
)
async def test_a_count_is_refused_by_field(told: Told, body: dict[str, Any], param: str) -> None:
    ai, _, _ = told
    with pytest.raises(openai.BadRequestError) as caught:
        await ai.responses.input_tokens.count(**body)
    assert caught.value.param == param


async def test_the_items_of_a_stored_response_are_listed_by_page(told: Told) -> None:
    ai, _, client = told
    first = await ai.responses.create(model="m", input="One?")
    second = await ai.responses.create(
        model="m",
        input=[{"role": "user", "content": [{"type": "input_text", "text": "Two?"}]}],
        previous_response_id=first.id,
    )
    page = await ai.responses.input_items.list(second.id, limit=2)
    newest: Any = [item async for item in page]
    listed: Any = (await ai.responses.input_items.list(second.id, order="asc")).data
    assert [item.id for item in newest] == [item.id for item in reversed(listed)]
    assert page.has_more
    assert [(item.role, item.content[0].type, item.content[0].text) for item in listed] == [
        ("user", "input_text", "One?"),
        ("assistant", "output_text", "Rain."),
        ("user", "input_text", "Two?"),
    ]
    assert listed[1].id == first.output[0].id
    path = f"/v1/responses/{second.id}/input_items"
    for query, param in (("limit=0", "limit"), ("order=up", "order"), ("after=x", "after")):
        error = await error_of(await client.get(f"{path}?{query}"), 400)
        assert error["param"] == param
    assert (await error_of(await client.get("/v1/responses/resp_x/input_items"), 404))["code"] == (
        "response_not_found"
    )


async def test_a_response_that_is_not_in_the_background_cannot_be_cancelled(told: Told) -> None:
    ai, _, _ = told
    first = await ai.responses.create(model="m", input="One?")
    with pytest.raises(openai.BadRequestError) as caught:
        await ai.responses.cancel(first.id)
    assert "background" in caught.value.message
    with pytest.raises(openai.NotFoundError):
        await ai.responses.cancel("resp_x")
    with pytest.raises(openai.BadRequestError) as caught:
        await ai.responses.retrieve(first.id, stream=True)
    assert caught.value.param == "stream"


async def test_other_paths_are_not_taken_for_a_response(told: Told) -> None:
    ai, _, client = told
    with pytest.raises(openai.NotFoundError) as caught:
        await ai.responses.compact(model="m", input="x")
    assert caught.value.code == "unknown_url"
    assert "POST /v1/responses/compact" in caught.value.message
    error = await error_of(await client.get("/v1/responses/input_tokens"), 405)
    assert "use POST" in error["message"]
