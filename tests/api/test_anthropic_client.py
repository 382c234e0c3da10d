"""The anthropic client from the registry, unchanged, against the application."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic
from pydantic import BaseModel

from api_harness import ScriptedEngine, delta, open_api, say
from mlxceld.api.keys import ApiKeys
from mlxceld.config import Settings
from mlxceld.engine.engine import Engine
from mlxceld.engine.events import Finished, FinishReason, PrefillProgress, Usage
from mlxceld.engine.stream import EventStream

MakeSettings = Callable[..., Settings]
TOOL: dict[str, Any] = {
    "name": "look",
    "description": "Look outside.",
    "input_schema": {"type": "object", "properties": {"where": {"type": "string"}}},
}
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
ASK: dict[str, Any] = {"model": "any", "max_tokens": 8, "messages": HELLO}


def client_of(client: Any) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=str(client.make_url("/")), api_key="k", max_retries=0)


@pytest.fixture
async def ai(engine: Engine, settings: MakeSettings) -> AsyncIterator[AsyncAnthropic]:
    async with open_api(engine, settings()) as client, client_of(client) as found:
        yield found


@pytest.fixture
async def told(
    scripted: ScriptedEngine, settings: MakeSettings
) -> AsyncIterator[tuple[AsyncAnthropic, ScriptedEngine]]:
    async with open_api(scripted, settings()) as client, client_of(client) as found:
        yield found, scripted


def answers(*texts: str, end: Finished | None = None) -> Callable[[EventStream], None]:
    end = end or Finished(FinishReason.STOP, Usage(50, 7, 20))
    return lambda stream: say(
        stream, PrefillProgress(50, 50, 20), *(delta(text) for text in texts), end
    )


async def test_a_message_and_its_stream_are_the_same(ai: AsyncAnthropic) -> None:
    greedy = {**ASK, "extra_body": {"temperature": 0}}
    whole = await ai.messages.create(**greedy)
    assert whole.type == "message"
    async with ai.messages.stream(**greedy) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert [block.type for block in whole.content] == ["text"]
    assert text == whole.content[0].text == final.content[0].text  # type: ignore[union-attr]
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    for usage in (whole.usage, final.usage):
        prompt = await ai.messages.count_tokens(model="any", messages=HELLO)
        total = usage.input_tokens + (usage.cache_read_input_tokens or 0)
        assert total + (usage.cache_creation_input_tokens or 0) == prompt.input_tokens


async def test_the_system_text_and_tools_count(ai: AsyncAnthropic) -> None:
    plain = await ai.messages.count_tokens(model="any", messages=HELLO)
    with_system = await ai.messages.count_tokens(
        model="any", messages=HELLO, system=[{"type": "text", "text": "Be brief."}]
    )
    as_text = await ai.messages.count_tokens(model="any", messages=HELLO, system="Be brief.")
    with_tools = await ai.messages.count_tokens(
        model="any", messages=HELLO, system="Be brief.", tools=[TOOL]
    )
    assert plain.input_tokens < with_system.input_tokens == as_text.input_tokens
    assert as_text.input_tokens < with_tools.input_tokens


async def test_a_second_turn_reads_what_the_first_stored(ai: AsyncAnthropic) -> None:
    system: list[Any] = [
        {"type": "text", "text": "Say little. " * 8, "cache_control": {"type": "ephemeral"}}
    ]
    first = await ai.messages.create(**ASK, system=system)
    assert first.usage.cache_read_input_tokens == 0
    created = first.usage.cache_creation_input_tokens
    assert created is not None
    assert created > 90
    assert first.usage.input_tokens > 0
    second = await ai.messages.create(**ASK, system=system)
    assert second.usage.cache_read_input_tokens is not None
    assert second.usage.cache_read_input_tokens >= created
    assert second.usage.cache_creation_input_tokens == 0


async def test_a_tool_call_streamed(told: tuple[AsyncAnthropic, ScriptedEngine]) -> None:
    ai, engine = told
    engine.on_submit = answers(
        "I look.\n<tool_", 'call>{"name": "look", "argu', 'ments": {"where": "up"}}</tool_call>'
    )
    events = []
    async with ai.messages.stream(**ASK, tools=[TOOL]) as stream:  # type: ignore[arg-type]
        async for event in stream:
            events.append(event.type)
        final = await stream.get_final_message()
    assert final.stop_reason == "tool_use"
    text, call = final.content
    assert text.type == "text"
    assert text.text == "I look."
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("look", {"where": "up"})
    assert final.usage.cache_read_input_tokens == 20
    raw = [kind for kind in events if kind not in ("text", "input_json")]
    assert raw == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


async def test_a_conversation_with_results_reaches_the_template(
    told: tuple[AsyncAnthropic, ScriptedEngine],
) -> None:
    ai, engine = told
    engine.on_submit = answers("Rain.")
    messages: list[Any] = [
        *HELLO,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"where": "up"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "rain"},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    await ai.messages.create(model="any", max_tokens=8, messages=messages, tools=[TOOL])  # type: ignore[list-item]
    prompt = engine.text.decode(engine.requests[0].tokens, skip_special_tokens=False)
    assert "assistant\nI look." in prompt
    assert '"where": "up"' in prompt
    assert "<|im_start|>tool\nrain<|im_end|>\n<|im_start|>user\nSo?<|im_end|>" in prompt


async def test_stop_sequences_and_prefill(told: tuple[AsyncAnthropic, ScriptedEngine]) -> None:
    ai, engine = told
    engine.on_submit = answers(
        "d is", end=Finished(FinishReason.STOP, Usage(5, 2, 0), stop_text="##")
    )
    messages: list[Any] = [*HELLO, {"role": "assistant", "content": "The wor"}]
    message = await ai.messages.create(
        model="any", max_tokens=8, messages=messages, stop_sequences=["##"]
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "##")
    assert engine.requests[0].sampling.stop == ("##",)
    assert engine.text.decode(engine.requests[0].tokens).endswith("The wor")


class Weather(BaseModel):
    city: str
    rain: bool


async def test_an_answer_that_has_to_fit_a_schema(ai: AsyncAnthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 4}, "rain": {"type": "boolean"}},
        "required": ["city", "rain"],
        "additionalProperties": False,
    }
    message = await ai.messages.create(
        model="any",
        max_tokens=80,
        messages=HELLO,
        extra_body={"output_config": {"format": {"type": "json_schema", "schema": schema}}},
    )
    assert message.stop_reason == "end_turn"
    assert Weather.model_validate_json(message.content[0].text)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        ({"temperature": 3}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"system": 1}, "system"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "much"}}, "thinking.type"),
        (
            {"output_format": {"type": "json_schema", "schema": {"not": {"type": "null"}}}},
            "output_format.schema",
        ),
    ],
)
async def test_bad_requests_in_the_vendors_envelope(
    ai: AsyncAnthropic, change: dict[str, Any], named: str
) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        await ai.messages.create(**{**ASK, "extra_body": change})
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert named in body["error"]["message"]
    assert caught.value.request_id


async def test_keys_routes_and_models_are_refused_in_it_too(
    engine: Engine, settings: MakeSettings, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text("laptop: sk-one\n")
    file.chmod(0o600)
    async with open_api(engine, settings(), ApiKeys(file)) as client:
        ai = client_of(client)
        with pytest.raises(anthropic.AuthenticationError) as refused:
            await ai.messages.create(**ASK)
        told: Any = refused.value.body
        assert told["error"]["type"] == "authentication_error"
        await ai.with_options(api_key="sk-one").messages.create(**ASK)
    async with open_api(engine, settings(strict_model=True)) as client:
        ai = client_of(client)
        with pytest.raises(anthropic.NotFoundError) as caught:
            await ai.messages.create(**ASK)
        body: Any = caught.value.body
        assert body["error"]["type"] == "not_found_error"
        response = await client.get("/v1/messages")
        assert response.status == 405
        assert (await response.json())["type"] == "error"


async def test_a_billing_line_is_dropped_before_rendering(
    scripted: ScriptedEngine, settings: MakeSettings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mlxceld.apc")
    scripted.state(trace_enabled=True)
    scripted.on_submit = answers("ok")
    for effective in (True, False):
        async with open_api(scripted, settings(volatile_heads=effective)) as client:
            ai = client_of(client)
            for number in (1, 2):
                line = f"x-anthropic-billing-header: cc_version=2.1; cch={number};"
                system: list[Any] = [
                    {"type": "text", "text": line},
                    {"type": "text", "text": "You are a coder."},
                ]
                await ai.messages.create(**ASK, system=system)
    one, two, three, four = ([*request.tokens] for request in scripted.requests)
    assert one == two
    assert three != four
    assert "billing" not in scripted.text.decode(one)
    said = "apc_event=volatile_head line=x-anthropic-billing-header dropped=true"
    told = [record.message for record in caplog.records if record.name == "mlxceld.apc"]
    assert told == [said, said]


def test_an_event_is_one_line_of_json() -> None:
    from mlxceld.api.anthropic.messages import _event

    kind, data = _event("ping", {}).rstrip("\n").split("\n")
    assert kind == "event: ping"
    assert json.loads(data.removeprefix("data: ")) == {"type": "ping"}


async def test_a_marker_is_a_boundary_of_the_prompt(
    told: tuple[AsyncAnthropic, ScriptedEngine],
) -> None:
    ai, engine = told
    engine.on_submit = answers("ok")
    mark = {"type": "ephemeral"}
    system: list[Any] = [{"type": "text", "text": "Be brief.", "cache_control": mark}]
    first: Any = {"type": "text", "text": "Read this.", "cache_control": mark}
    messages: list[Any] = [
        {"role": "user", "content": [first]},
        {"role": "assistant", "content": "Done."},
        *HELLO,
    ]
    await ai.messages.create(model="any", max_tokens=8, system=system, messages=messages)
    request = engine.requests[0]
    ends = {
        engine.text.decode(request.tokens[: mark.tokens], skip_special_tokens=False)
        for mark in request.boundaries
    }
    head = "<|im_start|>system\nBe brief.<|im_end|>\n"
    assert {head, f"{head}<|im_start|>user\nRead this.<|im_end|>\n"} <= ends
