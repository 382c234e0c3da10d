"""Tools, reasoning and structured output in chat completions, with the openai client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

from api_harness import ScriptedEngine, delta, finished, open_api, say
from mlxceld.config import Settings
from mlxceld.engine.engine import Engine
from mlxceld.engine.stream import EventStream

MakeSettings = Callable[..., Settings]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"where": {"enum": ["up", "down"]}},
                "required": ["where"],
            },
        },
    }
    for name in ("look", "walk")
]
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
CALL = '<tool_call>\n{"name": "look", "arguments": {"where": "up"}}\n</tool_call>'


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
    return lambda stream: say(stream, *(delta(text) for text in texts), finished())


async def test_calls_whole_and_streamed(told: tuple[AsyncOpenAI, ScriptedEngine]) -> None:
    ai, engine = told
    engine.on_submit = answers("I look.", "\n" + CALL[:9], CALL[9:30], CALL[30:], "\n" + CALL)
    whole = await ai.chat.completions.create(model="m", messages=HELLO, tools=TOOLS)
    async with ai.chat.completions.stream(model="m", messages=HELLO, tools=TOOLS) as stream:
        streamed = await stream.get_final_completion()
    for choice in (whole.choices[0], streamed.choices[0]):
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "I look."
        calls: Any = choice.message.tool_calls
        assert [call.function.name for call in calls] == ["look", "look"]
        assert [json.loads(call.function.arguments) for call in calls] == [{"where": "up"}] * 2
        assert len({call.id for call in calls}) == 2


async def test_what_cannot_be_parsed_or_was_not_offered_is_text(
    told: tuple[AsyncOpenAI, ScriptedEngine],
) -> None:
    ai, engine = told
    engine.on_submit = answers("<tool_call>{oops</tool_call>")
    broken = await ai.chat.completions.create(model="m", messages=HELLO, tools=TOOLS)
    assert broken.choices[0].message.content == "<tool_call>{oops</tool_call>"
    assert broken.choices[0].finish_reason == "stop"
    engine.on_submit = answers(CALL)
    for options in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        plain = await ai.chat.completions.create(model="m", messages=HELLO, **options)  # type: ignore[call-overload]
        assert plain.choices[0].message.content == CALL
        assert not plain.choices[0].message.tool_calls


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "walk"}}])
async def test_a_forced_call_is_a_call_whatever_the_model_is(ai: AsyncOpenAI, choice: Any) -> None:
    async with ai.chat.completions.stream(
        model="m", messages=HELLO, tools=TOOLS, tool_choice=choice, max_tokens=80
    ) as stream:
        done = (await stream.get_final_completion()).choices[0]
    calls: Any = done.message.tool_calls
    assert done.finish_reason == "tool_calls"
    assert json.loads(calls[0].function.arguments)["where"] in ("up", "down")
    assert calls[0].function.name in (("look", "walk") if choice == "required" else ("walk",))


class Weather(BaseModel):
    sky: Literal["clear", "grey"]
    degrees: int = Field(ge=-40, le=50)
    hours: list[Literal[6, 12, 18]] = Field(max_length=3)


async def test_the_clients_own_parser_gets_its_model_beside_free_text(ai: AsyncOpenAI) -> None:
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "model": "m"}
    alone = await ai.chat.completions.create(messages=HELLO, **greedy)

    async def parsed(seed: int) -> Any:
        done = await ai.chat.completions.parse(
            model="m", messages=HELLO, response_format=Weather, seed=seed, max_tokens=90
        )
        return done.choices[0].message.parsed

    *models, beside = await asyncio.gather(
        *(parsed(seed) for seed in range(5)), ai.chat.completions.create(messages=HELLO, **greedy)
    )
    assert all(isinstance(model, Weather) for model in models)
    assert len({model.model_dump_json() for model in models}) > 1
    assert beside.choices[0].message.content == alone.choices[0].message.content


async def test_a_json_object(ai: AsyncOpenAI) -> None:
    done = await ai.chat.completions.create(
        model="m",
        messages=HELLO,
        response_format={"type": "json_object"},
        max_tokens=40,
        logit_bias={str(ord("}")): 100},
    )
    assert json.loads(done.choices[0].message.content or "") == {}
    assert done.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("form", "param", "said"),
    [
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"uniqueItems": True}}},
            "response_format.json_schema.schema",
            "uniqueItems",
        ),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, None, "schema is missing"),
        ({"type": "json_schema"}, "response_format.json_schema", "is missing"),
        ({"type": "xml"}, "response_format.type", "xml"),
    ],
)
async def test_a_schema_that_cannot_be_kept_is_refused_by_name(
    ai: AsyncOpenAI, form: Any, param: str | None, said: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=said) as caught:
        await ai.chat.completions.create(model="m", messages=HELLO, response_format=form)
    assert caught.value.param == (param or "response_format.json_schema.schema")


async def test_a_tool_schema_with_references_holds(ai: AsyncOpenAI) -> None:
    tool: Any = {
        "type": "function",
        "function": {
            "name": "go",
            "parameters": {
                "type": "object",
                "properties": {"to": {"$ref": "#/$defs/Place"}},
                "required": ["to"],
                "$defs": {"Place": {"enum": ["home", "sea"]}},
            },
        },
    }
    done = await ai.chat.completions.create(
        model="m", messages=HELLO, tools=[tool], tool_choice="required", max_tokens=80
    )
    calls: Any = done.choices[0].message.tool_calls
    assert json.loads(calls[0].function.arguments)["to"] in ("home", "sea")


async def test_every_dialect_renders_the_same_prompt(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    scripted.on_submit = answers("ok")
    function = TOOLS[0]["function"]
    chat = {
        "messages": [{"role": "system", "content": "Be brief."}, *HELLO],
        "tools": TOOLS[:1],
        "tool_choice": "auto",
    }
    messages = {
        "model": "m",
        "max_tokens": 5,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": HELLO,
        "tools": [{"name": function["name"], "input_schema": function["parameters"]}],
        "tool_choice": {"type": "auto"},
    }
    responses = {
        "instructions": "Be brief.",
        "input": "Hello",
        "tools": [{"type": "function", "strict": True, **function}],
        "tool_choice": "auto",
    }
    async with open_api(scripted, settings()) as client:
        for path, body in (
            ("/v1/chat/completions", chat),
            ("/v1/messages", messages),
            ("/v1/responses", responses),
        ):
            response = await client.post(path, json=body)
            assert response.status == 200, await response.text()
    one, *others = scripted.requests
    for other in others:
        assert other.tokens == one.tokens
        assert other.template_signature == one.template_signature
