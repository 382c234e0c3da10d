"""Tools of chat completions in every form that OpenAI has had, with its own client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from api_harness import ScriptedEngine, delta, finished, open_api, say
from mlxceld.api.notes import HEADER
from mlxceld.config import Settings
from mlxceld.engine.engine import Engine
from mlxceld.engine.stream import EventStream

MakeSettings = Callable[..., Settings]
PARAMETERS = {
    "type": "object",
    "properties": {"where": {"enum": ["up", "down"]}},
    "required": ["where"],
}
FUNCTIONS: list[Any] = [{"name": name, "parameters": PARAMETERS} for name in ("look", "walk")]
TOOLS: list[Any] = [{"type": "function", "function": function} for function in FUNCTIONS]
SHELL: Any = {"type": "custom", "custom": {"name": "sh", "description": "A shell."}}
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
ASK: dict[str, Any] = {"model": "m", "messages": HELLO}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def named(*names: str) -> list[Any]:
    return [{"type": "function", "function": {"name": name}} for name in names]


def allowed(mode: str, *names: str) -> Any:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named(*names)}}


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


def answers(text: str) -> Callable[[EventStream], None]:
    """Character by character, so that nothing comes whole by luck."""
    return lambda stream: say(stream, *(delta(one) for one in text), finished())


async def deltas(ai: AsyncOpenAI, **options: Any) -> tuple[list[Any], str]:
    """The deltas of a streamed answer, and why it ended."""
    stream: Any = await ai.chat.completions.create(**ASK, **options, stream=True)
    chunks = [chunk async for chunk in stream]
    return [chunk.choices[0].delta for chunk in chunks], chunks[-1].choices[0].finish_reason


async def test_the_older_functions_are_answered_in_their_form(
    told: tuple[AsyncOpenAI, ScriptedEngine],
) -> None:
    ai, engine = told
    engine.on_submit = answers("I look.\n" + call("look", where="up") + call("walk", where="up"))
    whole: Any = (await ai.chat.completions.create(**ASK, functions=FUNCTIONS)).choices[0]
    assert whole.finish_reason == "function_call"
    assert whole.message.content == "I look."
    assert whole.message.tool_calls is None
    assert whole.message.function_call.name == "look"
    assert json.loads(whole.message.function_call.arguments) == {"where": "up"}

    parts, reason = await deltas(ai, functions=FUNCTIONS)
    calls = [part.function_call for part in parts if part.function_call]
    assert reason == "function_call"
    assert [one.name for one in calls if one.name] == ["look"]
    assert json.loads("".join(one.arguments for one in calls)) == {"where": "up"}

    await ai.chat.completions.create(**ASK, tools=TOOLS)
    legacy, _, today = (request.tokens for request in engine.requests)
    assert legacy == today
    none: Any = await ai.chat.completions.create(**ASK, functions=FUNCTIONS, function_call="none")
    assert none.choices[0].message.function_call is None
    assert "look" not in engine.text.decode(engine.requests[-1].tokens)


async def test_a_named_function_call_is_enforced(ai: AsyncOpenAI) -> None:
    whole: Any = await ai.chat.completions.create(
        **ASK, functions=FUNCTIONS, function_call={"name": "walk"}, max_tokens=80
    )
    called = whole.choices[0].message.function_call
    assert called.name == "walk"
    assert json.loads(called.arguments)["where"] in ("up", "down")


async def test_only_allowed_tools_are_called_where_one_has_to_be(ai: AsyncOpenAI) -> None:
    for seed in range(6):
        whole: Any = await ai.chat.completions.create(
            **ASK, tools=TOOLS, tool_choice=allowed("required", "walk"), max_tokens=80, seed=seed
        )
        assert [one.function.name for one in whole.choices[0].message.tool_calls] == ["walk"]


async def test_calls_of_other_tools_come_as_text(
    told: tuple[AsyncOpenAI, ScriptedEngine],
) -> None:
    ai, engine = told
    engine.on_submit = answers(
        "So: " + call("look", where="up") + call("walk", where="down") + call("look", where="down")
    )
    options: dict[str, Any] = {"tools": TOOLS, "tool_choice": allowed("auto", "walk")}
    whole: Any = (await ai.chat.completions.create(**ASK, **options)).choices[0]
    async with ai.chat.completions.stream(**ASK, **options) as stream:
        streamed: Any = (await stream.get_final_completion()).choices[0]
    for choice in (whole, streamed):
        (one,) = choice.message.tool_calls
        assert (one.function.name, json.loads(one.function.arguments)) == (
            "walk",
            {"where": "down"},
        )
        assert choice.message.content == (
            'So: {"name": "look", "arguments": {"where": "up"}}'
            '{"name": "look", "arguments": {"where": "down"}}'
        )
        assert choice.finish_reason == "tool_calls"

    engine.on_submit = answers(call("look", where="up"))
    refused: Any = (await ai.chat.completions.create(**ASK, **options)).choices[0]
    assert refused.finish_reason == "stop"
    assert not refused.message.tool_calls
    assert refused.message.content == '{"name": "look", "arguments": {"where": "up"}}'


async def test_the_prompt_and_its_cache_are_those_of_all_tools(
    told: tuple[AsyncOpenAI, ScriptedEngine],
) -> None:
    ai, engine = told
    engine.on_submit = answers("ok")
    for choice in ("auto", allowed("auto", "walk")):
        await ai.chat.completions.create(**ASK, tools=TOOLS, tool_choice=choice)
    one, two = engine.requests
    assert one.tokens == two.tokens
    assert one.template_signature == two.template_signature


async def test_a_custom_tool_is_called_with_free_text(
    told: tuple[AsyncOpenAI, ScriptedEngine],
) -> None:
    ai, engine = told
    text = 'ls "a b"\n'
    engine.on_submit = answers(call("sh", input=text) + call("look", where="up"))
    tools = [SHELL, TOOLS[0]]
    whole: Any = (await ai.chat.completions.create(**ASK, tools=tools)).choices[0]
    shell, look = whole.message.tool_calls
    assert (shell.type, shell.custom.name, shell.custom.input) == ("custom", "sh", text)
    assert (look.type, look.function.name) == ("function", "look")
    parts, reason = await deltas(ai, tools=tools)
    assert reason == "tool_calls"
    calls = [one for part in parts for one in part.tool_calls or ()]
    assert [one.index for one in calls if one.id] == [0, 1]
    assert calls[0].custom == {"name": "sh", "input": text}
    assert calls[1].function.name == "look"
    assert "".join(one.function.arguments for one in calls[1:]) == '{"where": "up"}'


async def test_a_custom_tool_may_be_forced(ai: AsyncOpenAI, engine: Engine) -> None:
    choice: Any = {"type": "custom", "custom": {"name": "sh"}}
    (quote,) = engine.text.encode('"', add_special_tokens=False)
    whole: Any = await ai.chat.completions.create(
        **ASK, tools=[TOOLS[0], SHELL], tool_choice=choice, logit_bias={str(quote): 100}
    )
    (one,) = whole.choices[0].message.tool_calls
    assert (one.type, one.custom.name, one.custom.input) == ("custom", "sh", "")


async def test_a_grammar_is_told_to_the_model_and_noted(
    told: tuple[AsyncOpenAI, ScriptedEngine],
) -> None:
    ai, engine = told
    engine.on_submit = answers("ok")
    grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-z]+ls"}}
    tool: Any = {"type": "custom", "custom": {"name": "sh", "format": grammar}}
    raw = await ai.chat.completions.with_raw_response.create(**ASK, tools=[tool])
    assert raw.headers[HEADER].startswith("tools[0].custom.format: ")
    assert "[a-z]+ls" in engine.text.decode(engine.requests[-1].tokens)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": TOOLS, "tool_choice": allowed("auto", "fly")}, "allowed_tools.tools[0]"),
        ({"tools": TOOLS, "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        ({"tools": TOOLS, "tool_choice": allowed("some", "look")}, "allowed_tools.mode"),
        ({"tools": TOOLS, "tool_choice": named("fly")[0]}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom"}]}, "tools[0].custom"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"functions": FUNCTIONS, "function_call": {"name": "fly"}}, "function_call"),
        ({"functions": FUNCTIONS, "tools": TOOLS}, "functions"),
        ({"function_call": {"name": "look"}}, "function_call"),
    ],
)
async def test_a_choice_of_nothing_is_refused_by_name(
    ai: AsyncOpenAI, options: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await ai.chat.completions.create(**ASK, extra_body=options)
    assert (caught.value.param or "").endswith(param)
