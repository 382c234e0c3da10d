"""Chat completions over the real engine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from api_harness import (
    WALL,
    ScriptedEngine,
    delta,
    error_of,
    finished,
    open_api,
    read_sse,
    say,
    streamed_text,
)
from mlxceld.config import Settings
from mlxceld.engine.engine import Engine
from mlxceld.engine.events import Delta, Finished, FinishReason, TokenLogprob, Usage
from mlxceld.engine.request import ANONYMOUS_SESSION

MakeSettings = Callable[..., Settings]
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
GREEDY: dict[str, Any] = {"messages": MESSAGES, "temperature": 0, "max_tokens": 12}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


async def _ask(client: Any, **fields: Any) -> dict[str, Any]:
    response = await client.post(CHAT, json={**GREEDY, **fields})
    assert response.status == 200, await response.text()
    body: dict[str, Any] = await response.json()
    return body


async def test_an_answer_is_complete(engine: Engine, settings: MakeSettings) -> None:
    prompt = engine.text.render_chat(MESSAGES).tokens
    async with open_api(engine, settings()) as client:
        body = await _ask(client, model="gpt-4o", ignore_eos=True)
    assert body["id"] == "chatcmpl-id1"
    assert body["object"] == "chat.completion"
    assert body["created"] == int(WALL)
    assert body["model"] == "llama"
    (choice,) = body["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    usage = body["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(prompt), 12)
    assert usage["total_tokens"] == len(prompt) + 12
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0


async def test_a_stream_says_the_same_as_a_whole_answer(
    engine: Engine, settings: MakeSettings
) -> None:
    async with open_api(engine, settings()) as client:
        whole = await _ask(client)
        chunks = await read_sse(await client.post(CHAT, json={**GREEDY, "stream": True}))
        options = {"stream": True, "stream_options": {"include_usage": True}}
        counted = await read_sse(await client.post(CHAT, json={**GREEDY, **options}))
    assert chunks[-1] == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert {c["object"] for c in chunks[:-1]} == {"chat.completion.chunk"}
    assert {c["id"] for c in chunks[:-1]} == {"chatcmpl-id2"}
    assert all("usage" not in chunk for chunk in chunks[:-1])
    assert streamed_text(chunks) == whole["choices"][0]["message"]["content"]
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [
        *[None] * (len(chunks) - 2),
        whole["choices"][0]["finish_reason"],
    ]
    # Asked for, the counts come last, in a chunk of their own; null stands in the others.
    assert counted[-2]["choices"] == []
    cached = counted[-2]["usage"].pop("prompt_tokens_details")
    assert cached["cached_tokens"] >= 0
    assert {**counted[-2]["usage"], "prompt_tokens_details": None} == {
        **whole["usage"],
        "prompt_tokens_details": None,
    }
    assert all(chunk["usage"] is None for chunk in counted[:-2])


@pytest.mark.parametrize("options", [{}, None, {"include_usage": None}, {"include_usage": False}])
async def test_stream_options_may_be_empty(
    engine: Engine, settings: MakeSettings, options: Any
) -> None:
    async with open_api(engine, settings()) as client:
        body = {**GREEDY, "stream": True, "stream_options": options}
        chunks = await read_sse(await client.post(CHAT, json=body))
    assert chunks[-1] == "[DONE]"
    assert all("usage" not in chunk for chunk in chunks[:-1])


async def test_choices_of_a_seed_are_the_choices_of_the_seeds_that_follow(
    engine: Engine, settings: MakeSettings
) -> None:
    warm = {"temperature": 1.0, "ignore_eos": True}
    async with open_api(engine, settings()) as client:
        several = await _ask(client, n=3, seed=2**63 - 2, **warm)
        alone = [await _ask(client, seed=2**63 - 2 + i, **warm) for i in range(3)]
        streamed = await read_sse(
            await client.post(
                CHAT, json={**GREEDY, **warm, "n": 3, "seed": 2**63 - 2, "stream": True}
            )
        )
        negative = await _ask(client, seed=-1, **warm)
        masked = await _ask(client, seed=2**64 - 1, **warm)
    texts = [choice["message"]["content"] for choice in several["choices"]]
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2]
    assert texts == [body["choices"][0]["message"]["content"] for body in alone]
    assert texts == [streamed_text(streamed, index) for index in range(3)]
    assert len(set(texts)) == 3
    # The prompt counts once.
    assert several["usage"]["prompt_tokens"] == alone[0]["usage"]["prompt_tokens"]
    assert several["usage"]["completion_tokens"] == 36
    assert negative["choices"][0]["message"] == masked["choices"][0]["message"]


async def test_logprobs_are_the_same_in_a_stream(engine: Engine, settings: MakeSettings) -> None:
    asked = {"logprobs": True, "top_logprobs": 3, "ignore_eos": True}
    async with open_api(engine, settings()) as client:
        body = await _ask(client, **asked)
        chunks = await read_sse(await client.post(CHAT, json={**GREEDY, **asked, "stream": True}))
        bare = await _ask(client, logprobs=True, ignore_eos=True)
    entries = body["choices"][0]["logprobs"]["content"]
    assert len(entries) == 12
    for entry in entries:
        assert list(entry) == ["token", "logprob", "bytes", "top_logprobs"]
        assert bytes(entry["bytes"]).decode("utf-8", "replace") == entry["token"]
        assert len(entry["top_logprobs"]) == 3
        # Greedy: the most likely token is the one chosen.
        assert entry["top_logprobs"][0]["bytes"] == entry["bytes"]
    told = [
        entry
        for chunk in chunks[:-1]
        if chunk["choices"][0]["logprobs"]
        for entry in chunk["choices"][0]["logprobs"]["content"]
    ]
    assert [e["bytes"] for e in told] == [e["bytes"] for e in entries]
    assert [e["logprob"] for e in told] == pytest.approx([e["logprob"] for e in entries], abs=1e-4)
    assert [e["top_logprobs"] for e in bare["choices"][0]["logprobs"]["content"]] == [[]] * 12


async def test_a_stop_string_ends_the_answer_before_it(
    engine: Engine, settings: MakeSettings
) -> None:
    async with open_api(engine, settings()) as client:
        free = (await _ask(client, ignore_eos=True, seed=5, temperature=1.0))["choices"][0]
        text = free["message"]["content"]
        stop = text[3:6]
        asked = {"ignore_eos": True, "seed": 5, "temperature": 1.0, "stop": stop}
        stopped = (await _ask(client, **asked))["choices"][0]
        chunks = await read_sse(await client.post(CHAT, json={**GREEDY, **asked, "stream": True}))
    assert stopped["finish_reason"] == "stop"
    assert stopped["message"]["content"] == text[: text.index(stop)]
    assert streamed_text(chunks) == stopped["message"]["content"]


async def test_logit_bias_steers_and_its_ids_are_checked(
    engine: Engine, settings: MakeSettings
) -> None:
    async with open_api(engine, settings()) as client:
        body = await _ask(client, logit_bias={str(ord("z")): 100}, max_tokens=5)
        assert body["choices"][0]["message"]["content"] == "zzzzz"
        response = await client.post(CHAT, json={**GREEDY, "logit_bias": {"320": 1}})
        error = await error_of(response, 400)
        assert error["param"] == "logit_bias"
        assert "token id 320" in error["message"]


async def test_the_newer_name_of_the_limit_wins(engine: Engine, settings: MakeSettings) -> None:
    async with open_api(engine, settings()) as client:
        body = await _ask(client, max_tokens=9, max_completion_tokens=4, ignore_eos=True)
        assert body["usage"]["completion_tokens"] == 4


async def test_a_prompt_too_long_is_refused_with_both_numbers(
    engine: Engine, settings: MakeSettings
) -> None:
    async with open_api(engine, settings()) as client:
        body = {"messages": [{"role": "user", "content": "x" * 600}], "stream": True}
        error = await error_of(await client.post(CHAT, json=body), 400)
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        words = r"This model's maximum context length is 512 tokens; the prompt is too long: (\d+)"
        found = re.fullmatch(words + " tokens > 512 maximum", error["message"])
        assert found is not None
        assert int(found[1]) > 600


async def test_without_a_limit_the_context_is_one(engine: Engine, settings: MakeSettings) -> None:
    async with open_api(engine, settings()) as client:
        body = {"messages": [{"role": "user", "content": "x" * 440}], "ignore_eos": True}
        answer = await (await client.post(CHAT, json=body)).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["total_tokens"] == 512


async def test_strict_model_refuses_names_it_does_not_know(
    engine: Engine, settings: MakeSettings
) -> None:
    async with open_api(engine, settings(strict_model=True, alias=("gpt-4o",))) as client:
        error = await error_of(await client.post(CHAT, json={**GREEDY, "model": "other"}), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert error["message"].endswith("valid ids are: llama, gpt-4o")
        for name in ("llama", "gpt-4o", None):
            assert (await _ask(client, model=name))["model"] == "llama"


async def test_a_template_that_refuses_is_a_400(engine: Engine, settings: MakeSettings) -> None:
    async with open_api(engine, settings()) as client:
        body = {**GREEDY, "chat_template_kwargs": {"messages": []}}
        error = await error_of(await client.post(CHAT, json=body), 400)
        assert error["param"] == "chat_template_kwargs"
        assert error["code"] == "chat_template_error"


async def _submitted(scripted: ScriptedEngine, client: Any, body: dict[str, Any]) -> Any:
    """The engine's request for a body, answered at once."""
    scripted.on_submit = lambda stream: say(stream, finished())
    response = await client.post(CHAT, json=body)
    assert response.status == 200, await response.text()
    return scripted.requests[-1]


async def test_all_roles_parts_and_tools_reach_the_template(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}
    messages = [
        {"role": "developer", "content": "Rules."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "function", "name": "look", "content": "again"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "so?", "unknown": {"a": 1}},
    ]
    async with open_api(scripted, settings()) as client:
        request = await _submitted(
            scripted, client, {"messages": messages, "tools": [TOOL], "tool_choice": "required"}
        )
        text = scripted.text.decode(request.tokens, skip_special_tokens=False)
        for piece in ("Rules.", "one\ntwo", '"name": "look"', "found", "again", "so?"):
            assert piece in text
        assert text.endswith("<|im_start|>assistant\n")
        plain = await _submitted(scripted, client, {"messages": messages, "tools": []})
        assert "Tools:" not in scripted.text.decode(plain.tokens, skip_special_tokens=False)
        assert plain.template_signature != request.template_signature


async def test_a_last_assistant_message_can_be_continued(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "I thi"}]
    async with open_api(scripted, settings()) as client:
        body = {"messages": messages, "continue_final_message": True}
        request = await _submitted(scripted, client, body)
        text = scripted.text.decode(request.tokens, skip_special_tokens=False)
        assert text.endswith("<|im_start|>assistant\nI thi")


@pytest.mark.parametrize(
    ("fields", "session"),
    [
        ({}, ANONYMOUS_SESSION),
        ({"user": "", "prompt_cache_key": ""}, ANONYMOUS_SESSION),
        ({"user": "alice"}, "alice"),
        ({"user": "alice", "prompt_cache_key": "key"}, "key"),
        ({"user": "alice", "prompt_cache_key": ""}, "alice"),
        ({"user": "alice", "extra_body": {"prompt_cache_key": "nested"}}, "nested"),
        ({"extra_body": {"prompt_cache_key": "", "user": "bob"}}, "bob"),
        ({"extra_body": None}, ANONYMOUS_SESSION),
    ],
)
async def test_the_session_is_the_first_key_that_is_not_empty(
    scripted: ScriptedEngine, settings: MakeSettings, fields: dict[str, Any], session: str
) -> None:
    async with open_api(scripted, settings()) as client:
        request = await _submitted(scripted, client, {"messages": MESSAGES, **fields})
        assert request.session == session


async def test_parameters_reach_the_engine(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    async with open_api(scripted, settings(request_timeout=77.0)) as client:
        request = await _submitted(scripted, client, {"messages": MESSAGES})
        params = request.sampling
        assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, 0, 0.0)
        assert (params.max_tokens, params.stop, params.logprobs, params.seed) == (
            None,
            (),
            None,
            None,
        )
        assert (request.endpoint, request.stream) == ("chat", False)
        # What is left of it since the request arrived.
        assert 0 < request.timeout < 77.0
        request = await _submitted(
            scripted,
            client,
            {
                "messages": MESSAGES,
                "temperature": 0,
                "top_p": 0.5,
                "top_k": -1,
                "min_p": 0.1,
                "repetition_penalty": 1.1,
                "presence_penalty": -1,
                "frequency_penalty": 2,
                "logit_bias": {"5": -100},
                "stop": ["a", "b"],
                "ignore_eos": True,
                "logprobs": True,
                "max_tokens": 10**30,
                "seed": 3,
                "metadata": {"a": "b"},
                "store": True,
                "service_tier": "auto",
                "parallel_tool_calls": False,
                "response_format": {"type": "text"},
            },
        )
        params = request.sampling
        assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0, 0.5, 0, 0.1)
        assert (params.repetition_penalty, params.presence_penalty) == (1.1, -1)
        assert (params.frequency_penalty, dict(params.logit_bias)) == (2, {5: -100})
        assert (params.stop, params.ignore_eos, params.logprobs) == (("a", "b"), True, 0)
        assert (params.max_tokens, params.seed) == (10**30, 3)


async def test_ids_of_choices_and_a_callers_id_that_is_taken(
    engine: Engine, settings: MakeSettings
) -> None:
    async with open_api(engine, settings()) as client:
        long = {**GREEDY, "max_tokens": 400, "ignore_eos": True, "stream": True}
        headers = {"X-Request-Id": "same"}
        first = await client.post(CHAT, json=long, headers=headers)
        assert await first.content.readline()
        second = await client.post(CHAT, json=GREEDY, headers=headers)
        assert second.status == 200
        assert second.headers["X-Request-Id"] == "same"
        first.close()


async def test_choices_have_ids_of_their_own(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    async with open_api(scripted, settings()) as client:
        await _submitted(scripted, client, {"messages": MESSAGES, "n": 2})
        await _submitted(scripted, client, {"messages": MESSAGES})
    assert [request.id for request in scripted.requests] == ["id1-0", "id1-1", "id2"]


async def test_cached_tokens_and_infinite_logprobs_are_told(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    entry = TokenLogprob(1, "a", b"a", float("-inf"))
    scripted.on_submit = lambda stream: say(
        stream, Delta("a", (1,), (entry,)), finished(prompt=50, completion=1, cached=48)
    )
    async with open_api(scripted, settings()) as client:
        response = await client.post(CHAT, json={"messages": MESSAGES, "logprobs": True})
        body = await response.json()
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 48}
    assert body["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0


async def test_a_second_turn_reads_the_first_from_the_cache(
    engine: Engine, settings: MakeSettings
) -> None:
    async with open_api(engine, settings()) as client:
        turn = {"user": "cached", "ignore_eos": False}
        first = await _ask(client, **turn, logit_bias={str(ord("y")): 100})
        text = first["choices"][0]["message"]["content"]
        messages = [
            *MESSAGES,
            {"role": "assistant", "content": text},
            {"role": "user", "content": "More"},
        ]
        second = await _ask(client, **turn, messages=messages)
    assert text == "y" * 12
    assert (
        second["usage"]["prompt_tokens_details"]["cached_tokens"]
        >= (first["usage"]["prompt_tokens"])
    )


async def test_many_connections_at_once_are_all_answered(
    engine: Engine, settings: MakeSettings
) -> None:
    async with open_api(engine, settings()) as client:
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*(_ask(client, max_tokens=2) for _ in range(60)))
    assert len({a["choices"][0]["message"]["content"] for a in answers}) == 1


@pytest.mark.parametrize(
    ("end", "status", "code"),
    [
        (Finished(FinishReason.TIMEOUT, Usage(5, 1, 0)), 504, "timeout"),
        (Finished(FinishReason.CANCELLED, Usage(5, 1, 0)), 499, "request_cancelled"),
    ],
)
async def test_an_end_by_force_is_an_error(
    scripted: ScriptedEngine, settings: MakeSettings, end: Finished, status: int, code: str
) -> None:
    scripted.on_submit = lambda stream: say(stream, delta("part"), end)
    async with open_api(scripted, settings()) as client:
        response = await client.post(CHAT, json={"messages": MESSAGES})
        error = await error_of(response, status)
        assert error["code"] == code
        assert (response.headers.get("x-should-retry") == "false") is (status == 504)
