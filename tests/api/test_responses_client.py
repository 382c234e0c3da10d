"""The openai client's Responses, unchanged, against the application."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from api_harness import ScriptedEngine, delta, open_api, say
from mlxceld.api.responses.store import ResponseStore, StoredResponse
from mlxceld.config import Settings
from mlxceld.engine.engine import Engine
from mlxceld.engine.events import Failed, FailureKind, Finished, FinishReason, Usage
from mlxceld.engine.stream import EventStream

MakeSettings = Callable[..., Settings]
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "look",
    "description": "Look outside.",
    "parameters": {"type": "object", "properties": {"where": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>{"name": "look", "arguments": {"where": "up"}}</tool_call>'
SHORT: dict[str, Any] = {"model": "any", "temperature": 0, "max_output_tokens": 8}


def client_of(client: Any) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=str(client.make_url("/v1")), api_key="k", max_retries=0)


@pytest.fixture
async def ai(engine: Engine, settings: MakeSettings) -> AsyncIterator[AsyncOpenAI]:
    async with open_api(engine, settings()) as client, client_of(client) as found:
        yield found


@pytest.fixture
async def told(
    scripted: ScriptedEngine, settings: MakeSettings
) -> AsyncIterator[tuple[AsyncOpenAI, ScriptedEngine]]:
    async with open_api(scripted, settings()) as client, client_of(client) as found:
        yield found, scripted


def answers(*texts: str) -> Callable[[EventStream], None]:
    end = Finished(FinishReason.STOP, Usage(50, 7, 20))
    return lambda stream: say(stream, *(delta(text) for text in texts), end)


async def test_whole_streamed_fetched_and_deleted(ai: AsyncOpenAI) -> None:
    whole = await ai.responses.create(input="Hello", **SHORT)
    async with ai.responses.stream(input="Hello", **SHORT) as stream:
        kinds = [event.type async for event in stream]
    assert whole.output_text
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:-1] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert kinds[-1] == f"response.{whole.status}"
    again = await ai.responses.retrieve(whole.id)
    assert again.output_text == whole.output_text
    await ai.responses.delete(whole.id)
    with pytest.raises(openai.NotFoundError):
        await ai.responses.retrieve(whole.id)


async def test_a_response_continues_another(told: tuple[AsyncOpenAI, ScriptedEngine]) -> None:
    ai, engine = told
    engine.on_submit = answers("Rain", "ing.")
    first = await ai.responses.create(model="m", input="Weather?", instructions="Be brief.")
    second = await ai.responses.create(model="m", input="Why?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    one, two = engine.requests
    text = engine.text.decode(two.tokens, skip_special_tokens=False)
    assert "Be brief." in engine.text.decode(one.tokens)
    assert "Be brief." not in text  # instructions are not inherited
    assert "user\nWeather?<|im_end|>\n<|im_start|>assistant\nRaining.<|im_end|>" in text
    assert one.session == two.session == first.id
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens == 20


async def test_what_is_not_stored_cannot_be_continued(ai: AsyncOpenAI) -> None:
    first = await ai.responses.create(input="Hello", store=False, **SHORT)
    with pytest.raises(openai.BadRequestError) as caught:
        await ai.responses.create(input="More", previous_response_id=first.id, **SHORT)
    assert caught.value.code == "previous_response_not_found"
    assert caught.value.param == "previous_response_id"


async def test_a_function_call_and_its_output(told: tuple[AsyncOpenAI, ScriptedEngine]) -> None:
    ai, engine = told
    engine.on_submit = answers("I look.\n", CALL[:20], CALL[20:])
    async with ai.responses.stream(model="m", input="Rain?", tools=[TOOL]) as stream:  # type: ignore[list-item]
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    message, call = final.output
    assert message.type == "message"
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("look", {"where": "up"})
    assert kinds[-5:] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    engine.on_submit = answers("Yes.")
    done: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    await ai.responses.create(
        model="m",
        input=[done],
        previous_response_id=final.id,
        tools=[TOOL],  # type: ignore[list-item]
    )
    text = engine.text.decode(engine.requests[1].tokens, skip_special_tokens=False)
    assert "assistant\nI look.<tool_call>" in text
    assert "<|im_start|>tool\nrain<|im_end|>" in text
    # The same conversation sent as items renders the same.
    items: list[Any] = [{"role": "user", "content": "Rain?"}, *final.output, done]
    await ai.responses.create(model="m", input=items, tools=[TOOL])  # type: ignore[list-item]
    assert engine.requests[2].tokens == engine.requests[1].tokens
    assert engine.requests[2].template_signature == engine.requests[1].template_signature


class Weather(BaseModel):
    sky: Literal["clear", "grey"]
    rain: bool


async def test_the_clients_own_parser_gets_its_model(ai: AsyncOpenAI) -> None:
    parsed = await ai.responses.parse(
        model="any", input="Weather?", text_format=Weather, max_output_tokens=60
    )
    assert isinstance(parsed.output_parsed, Weather)


async def test_a_fault_is_a_failed_response(told: tuple[AsyncOpenAI, ScriptedEngine]) -> None:
    ai, engine = told
    failed = Failed(FailureKind.REQUEST, "it broke", Usage(5, 1, 0))
    engine.on_submit = lambda stream: say(stream, delta("Hm"), failed)
    stream = await ai.responses.create(model="m", input="Hello", stream=True)
    events = [event async for event in stream]
    assert events[-1].type == "response.failed"
    assert events[-1].response.error is not None
    assert events[-1].response.error.message == "it broke"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 3}]}, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
        ({"temperature": 3}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"name": "look"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"store": "yes"}, "store"),
    ],
)
async def test_bad_requests_name_the_field(
    ai: AsyncOpenAI, change: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await ai.responses.create(input="Hello", extra_body=change, **SHORT)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def test_the_store_keeps_within_its_budget() -> None:
    def stored(text: str) -> StoredResponse:
        return StoredResponse({"output": text}, [{"id": "shared"}], "s")

    size = 3 + len('[{"output": ""}, [{"id": "shared"}]]')
    store = ResponseStore(2 * size)
    assert store.put("a", stored("abc"))
    assert store.put("b", stored("abc"))
    assert store.get("a") is not None
    assert store.put("c", stored("abc"))
    assert store.get("b") is None  # used longest ago
    assert store.item("shared") == {"id": "shared"}
    assert store.get("a") is not None
    assert store.bytes == 2 * size
    assert not store.put("d", stored("x" * 200))
    assert store.remove("a")
    assert not store.remove("a")
    assert (len(store), store.bytes) == (1, size)
    assert store.item("shared") is not None
    assert store.remove("c")
    assert store.item("shared") is None
    assert not ResponseStore(0).put("a", stored(""))
