"""A prompt that was warmed is there for whoever sends it: every API, every kind of cache."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mlxceld.api.prompts import Api, api_of
from mlxceld.prompt_cache.key import session_hash
from mlxceld.warmup import warm_files
from stack_harness import Stack, open_stack
from tiny_models import TinyModels

SYSTEM = "You are a patient assistant who answers in one short sentence, whatever is asked."
QUESTION = "What is the capital of France?"
NAMES = ("search", "clock", "read", "write", "list", "find", "run")


def chat_tool(name: str, text: str = "Does what it says.") -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    function = {"name": name, "description": text, "parameters": parameters}
    return {"type": "function", "function": function}


CHAT = {
    "model": "any",
    "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}],
    "tools": [chat_tool(name) for name in NAMES[:2]],
    "tool_choice": "auto",
    "chat_template_kwargs": {"enable_thinking": False},
    "temperature": 0,
    "max_tokens": 4,
}
MESSAGES = {
    "model": "any",
    "system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}],
    "tools": [{"name": "search", "description": "Finds.", "input_schema": {"type": "object"}}],
    "max_tokens": 4,
}
RESPONSES = {
    "model": "any",
    "instructions": SYSTEM,
    "input": [{"type": "message", "role": "user", "content": QUESTION}],
    "tools": [
        {"type": "function", "name": "search", "parameters": {"type": "object"}},
        {"type": "custom", "name": "patch", "description": "Takes a patch."},
    ],
    "max_output_tokens": 16,
    "temperature": 0,
}
COMPLETIONS = {"model": "any", "prompt": f"{SYSTEM} {QUESTION}", "max_tokens": 4, "temperature": 0}

BODIES = {
    Api.CHAT: CHAT,
    Api.MESSAGES: MESSAGES,
    Api.RESPONSES: RESPONSES,
    Api.COMPLETIONS: COMPLETIONS,
}
PATHS = {
    Api.CHAT: "/v1/chat/completions",
    Api.MESSAGES: "/v1/messages",
    Api.RESPONSES: "/v1/responses",
    Api.COMPLETIONS: "/v1/completions",
}


def of_session(api: Api, body: dict[str, Any], key: str) -> dict[str, Any]:
    """The body as a client with a session key sends it."""
    if api is Api.MESSAGES:
        return {**body, "metadata": {"user_id": key}}
    return {**body, "prompt_cache_key": key}


async def send(stack: Stack, api: Api, body: dict[str, Any]) -> tuple[int, int]:
    """A request's prompt tokens and how many of them were cached."""
    response = await stack.public.post(PATHS[api], json=body)
    assert response.status == 200, await response.text()
    usage = (await response.json())["usage"]
    if api is Api.MESSAGES:
        read = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + usage["cache_creation_input_tokens"] + read, read
    if api is Api.RESPONSES:
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture(params=["llama", "gemma3_text", "qwen3_next"])
async def stack(
    request: pytest.FixtureRequest, tiny_models: TinyModels, tmp_path: Path
) -> AsyncIterator[Stack]:
    """A pageable, a windowed and a hybrid model."""
    async with open_stack(tiny_models.folder(request.param), tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("api", Api)
def test_a_body_tells_whose_it_is(api: Api) -> None:
    assert api_of(BODIES[api]) is api


async def test_what_was_warmed_is_there_for_every_session(stack: Stack) -> None:
    for api, body in BODIES.items():
        warmed = await stack.order("POST", "cache/warm", body)
        assert warmed["cached_tokens"] < warmed["tokens"]
        for sent in (body, of_session(api, body, "alice"), of_session(api, body, "bob")):
            told = await stack.order("POST", "cache/explain", sent)
            prompt, cached = await send(stack, api, sent)
            assert cached == prompt - 1, (api, sent)
            assert (told["outcome"], told["prompt_tokens"]) == ("hit", prompt)
            assert told["reused_tokens"] == cached
        again = await stack.order("POST", "cache/warm", {**body, "pin": True})
        assert again["cached_tokens"] >= prompt - 2
        assert again["pinned"]
        await stack.order("POST", "cache/flush", {})


async def test_a_system_text_is_found_by_every_session(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "system.txt"
    file.write_text(SYSTEM)
    public = stack.prompts
    assert await warm_files(stack.engine, public, [file]) == 1
    (entry,) = (await stack.order("GET", "cache/entries"))["entries"]
    assert entry["pins"] == 1
    asked = {"messages": CHAT["messages"], "temperature": 0, "max_tokens": 4}
    for sent in (asked, of_session(Api.CHAT, asked, "alice"), {**asked, "user": "bob"}):
        sent = {**sent, "messages": [*sent["messages"][:1], {"role": "user", "content": str(sent)}]}
        _, cached = await send(stack, Api.CHAT, sent)
        assert cached >= entry["tokens"] >= len(SYSTEM) / 2


async def test_a_history_is_kept_as_far_as_the_next_turn_repeats_it(stack: Stack) -> None:
    history = [*CHAT["messages"], {"role": "assistant", "content": "Paris."}]
    warmed = await stack.order("POST", "cache/warm", {"messages": history})
    sent = {
        "messages": [*history, {"role": "user", "content": "And of Spain?"}],
        "temperature": 0,
        "max_tokens": 4,
        "user": "alice",
    }
    _, cached = await send(stack, Api.CHAT, sent)
    assert cached >= warmed["tokens"] - 1


async def test_an_explanation_names_the_session_that_has_it(stack: Stack) -> None:
    body = {"prompt": "a" * 60, "temperature": 0, "max_tokens": 4}
    await send(stack, Api.COMPLETIONS, {**body, "user": "alice"})
    told = await stack.order("POST", "cache/explain", {**body, "user": "bob"})
    codes = [one["code"] for one in told["advice"]]
    if told["store"] == "kv":
        assert (told["outcome"], told["other_session"]) == ("hit", None)
        return
    assert told["reused_tokens"] == 0
    assert told["session"] == session_hash("bob")
    assert told["other_session"]["session"] == session_hash("alice")
    assert codes == ["other_session"]
    (advice,) = told["advice"]
    assert session_hash("alice") in advice["text"]
    assert "kv_backend" not in json.dumps(told)


async def test_an_explanation_does_not_promise_what_snapshots_cannot_give(stack: Stack) -> None:
    body = {"temperature": 0, "max_tokens": 4, "user": "alice"}
    await send(stack, Api.COMPLETIONS, {**body, "prompt": "a" * 60})
    told = await stack.order("POST", "cache/explain", {**body, "prompt": "a" * 40 + "b" * 20})
    texts = " ".join(one["text"] for one in told["advice"])
    if told["store"] == "kv":
        assert told["reused_tokens"] == 40
        assert "everything before it is reused" in texts
    else:
        assert told["reused_tokens"] == 0
        assert "resumes only where a state was kept" in texts
        assert "everything before it" not in texts


@pytest.mark.parametrize(
    ("left", "reason", "code"),
    [("flush", "flush", "flushed"), ("resize", "resize", "evicted"), ("lru", "lru", "evicted")],
)
async def test_an_explanation_knows_what_has_left(
    stack: Stack, left: str, reason: str, code: str
) -> None:
    body = {"prompt": "a" * 60, "temperature": 0, "max_tokens": 4, "user": "alice"}
    await send(stack, Api.COMPLETIONS, body)
    if left == "flush":
        await stack.order("POST", "cache/flush", {})
    elif left == "resize":
        await stack.order("PATCH", "cache/budget", {"max_entries": 0, "snapshot_max_entries": 0})
        limits = {"max_entries": 1, "snapshot_max_entries": 1}
        await stack.order("PATCH", "cache/budget", limits)
    else:
        # A request leaves one entry, or a boundary and a completion.
        limits = {"max_entries": 2, "snapshot_max_entries": 2}
        await stack.order("PATCH", "cache/budget", limits)
        for letter in "bc":
            await send(stack, Api.COMPLETIONS, {**body, "prompt": letter * 60, "user": letter})
    told = await stack.order("POST", "cache/explain", body)
    assert told["outcome"] == "miss"
    assert told["departure"]["reason"] == reason
    assert told["departure"]["matched_tokens"] >= 32
    assert [one["code"] for one in told["advice"]] == [code]


async def test_fewer_tokens_than_are_ever_reused_are_no_match(stack: Stack) -> None:
    body = {"temperature": 0, "max_tokens": 4}
    await send(stack, Api.COMPLETIONS, {**body, "prompt": "a" * 60})
    told = await stack.order("POST", "cache/explain", {**body, "prompt": "a" * 9 + "b" * 50})
    assert (told["outcome"], told["entry"], told["divergence"]) == ("miss", None, None)
    assert [one["code"] for one in told["advice"]] == ["first_time"]


@pytest.mark.parametrize("change", ["swap", "description", "left out"])
async def test_an_explanation_names_the_first_tool_that_differs(
    tiny_models: TinyModels, tmp_path: Path, change: str
) -> None:
    stored = [chat_tool(name) for name in NAMES]
    asked = list(stored)
    if change == "swap":
        asked[2], asked[5] = asked[5], asked[2]
    elif change == "description":
        asked[4] = chat_tool(NAMES[4], "Does what it says, twice.")
    else:
        del asked[3]
    expected = {"swap": "find", "description": "list", "left out": "list"}[change]
    async with open_stack(tiny_models.folder("llama"), tmp_path) as stack:
        for tools in (None, stored[:1], stored):
            await send(stack, Api.CHAT, {**CHAT, "tools": tools})
        told = await stack.order("POST", "cache/explain", {**CHAT, "tools": asked})
    other = told["other_rendering"]
    assert other["tool"] == expected
    assert other["differs"] == ("tools_order" if change == "swap" else "tools")
    # The one that shares most is told, not the first that is found.
    assert other["matched_tokens"] > told["prompt_tokens"] / 4
    assert expected in told["advice"][0]["text"]
