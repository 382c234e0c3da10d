"""An agent's loop over each dialect: each prompt begins with the last one, which is reused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from api_harness import open_api
from mlxceld.config import Settings
from mlxceld.engine.engine import Engine

TURNS = 4
PARAMETERS = {"type": "object", "properties": {"p": {"enum": ["a", "b"]}}, "required": ["p"]}


async def chat(url: str, system: str) -> list[tuple[int, int]]:
    tool: Any = {"type": "function", "function": {"name": "ls", "parameters": PARAMETERS}}
    messages: list[Any] = [
        {"role": "system", "content": system},
        {"role": "user", "content": "Fix it."},
    ]
    seen = []
    async with AsyncOpenAI(base_url=f"{url}v1", api_key="k") as ai:
        for _ in range(TURNS):
            done = await ai.chat.completions.create(
                model="m", messages=messages, tools=[tool], tool_choice="required"
            )
            usage: Any = done.usage
            seen.append((usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens))
            message: Any = done.choices[0].message
            call = message.tool_calls[0]
            messages.append(message.model_dump(exclude_none=True))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "x"})
    return seen


async def anthropic(url: str, system: str) -> list[tuple[int, int]]:
    tool: Any = {"name": "ls", "input_schema": PARAMETERS}
    messages: list[Any] = [{"role": "user", "content": "Fix it."}]
    seen = []
    async with AsyncAnthropic(base_url=url, api_key="k") as ai:
        for _ in range(TURNS):
            done = await ai.messages.create(
                model="m",
                max_tokens=60,
                system=system,
                messages=messages,
                tools=[tool],
                tool_choice={"type": "any"},
            )
            read = done.usage.cache_read_input_tokens or 0
            seen.append((done.usage.input_tokens + read, read))
            call: Any = done.content[-1]
            result = {"type": "tool_result", "tool_use_id": call.id, "content": "x"}
            messages.append({"role": "assistant", "content": done.content})
            messages.append({"role": "user", "content": [result]})
    return seen


async def responses(url: str, system: str) -> list[tuple[int, int]]:
    tool: Any = {"type": "function", "name": "ls", "parameters": PARAMETERS, "strict": False}
    given: Any = "Fix it."
    previous: dict[str, Any] = {}
    seen = []
    async with AsyncOpenAI(base_url=f"{url}v1", api_key="k") as ai:
        for _ in range(TURNS):
            done = await ai.responses.create(
                model="m",
                instructions=system,
                input=given,
                tools=[tool],
                tool_choice="required",
                **previous,
            )
            usage: Any = done.usage
            seen.append((usage.input_tokens, usage.input_tokens_details.cached_tokens))
            call: Any = done.output[-1]
            assert json.loads(call.arguments)["p"] in ("a", "b")
            given = [{"type": "function_call_output", "call_id": call.call_id, "output": "x"}]
            previous = {"previous_response_id": done.id}
    return seen


@pytest.mark.parametrize("loop", [chat, anthropic, responses])
async def test_each_turn_computes_only_what_is_new(
    engine: Engine,
    settings: Callable[..., Settings],
    loop: Callable[[str, str], Any],
) -> None:
    async with open_api(engine, settings()) as client:
        seen = await loop(str(client.make_url("/")), f"{loop.__name__}: be brief.")
    for (before, _), (prompt, cached) in itertools.pairwise(seen):
        assert cached >= 0.95 * before
        assert prompt - cached <= 1.05 * (prompt - before)
