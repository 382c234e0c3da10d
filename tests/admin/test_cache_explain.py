"""What an explanation foretells is what then happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlxceld.admin.app import PREFIX
from mlxceld.prompt_cache.explain import ExplainOutcome, ExplainReport
from mlxceld.prompt_cache.key import Bucket, session_hash
from mlxceld.prompt_cache.prompt_cache import PromptCache
from mlxceld.prompt_cache.rejects import RejectReason
from stack_harness import Stack, cached, open_stack
from tiny_models import TinyModels

SYSTEM = "You are a patient assistant who answers in one short sentence."
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("search", "clock")
]


def talk(*turns: str, system: str = SYSTEM) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [
        {"role": "system", "content": system},
        *({"role": roles[i % 2], "content": text} for i, text in enumerate(turns)),
    ]


async def _foretold(stack: Stack, body: dict[str, Any]) -> dict[str, Any]:
    """An explanation, which moves no counter, and then its request, which has to agree."""
    before = await stack.stats()
    told = await stack.order("POST", "cache/explain", body)
    assert await stack.stats() == before
    request = {k: v for k, v in body.items() if k != "session"}
    if "session" in body:
        request["prompt_cache_key"] = body["session"]
    if "messages" in request:
        answer = await stack.chat(request.pop("messages"), **request)
    else:
        answer = await stack.complete(request.pop("prompt"), **request)
    assert told["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert told["reused_tokens"] == cached(answer)
    after = await stack.stats()
    assert after["hits"] - before["hits"] == (told["outcome"] == "hit")
    moved = {k for k in after if k.startswith("reject_") and after[k] != before[k]}
    expected = {told["reason"], told["donation_reason"]} - {None}
    assert moved == {f"reject_{reason}" for reason in expected}
    return told


def _codes(told: dict[str, Any]) -> list[str]:
    return [item["code"] for item in told["advice"]]


async def test_five_prompts(tiny_models: TinyModels, tmp_path: Path) -> None:
    async with open_stack(tiny_models.folder("llama"), tmp_path) as stack:
        first = {"messages": talk("Hello!"), "session": "alice"}
        unseen = await _foretold(stack, first)
        assert (unseen["outcome"], unseen["entry"]) == ("miss", None)
        assert _codes(unseen) == ["first_time"]

        exact = await _foretold(stack, first)
        assert exact["outcome"] == "hit"
        assert exact["reused_tokens"] == exact["prompt_tokens"] - 1
        assert exact["divergence"] is None
        assert exact["advice"] == []
        assert exact["entry"]["same_session"] is True

        other = await _foretold(stack, {"messages": talk("Hello!"), "session": "bob"})
        assert other["outcome"] == "hit"
        assert other["entry"]["same_session"] is False
        assert other["entry"]["session"] == session_hash("alice")

        middle = await _foretold(stack, {"messages": talk("Hellas is far."), "session": "alice"})
        assert middle["outcome"] == "hit"
        at = middle["divergence"]["token"]
        assert at == middle["reused_tokens"]
        # The surroundings are the caller's own words.
        assert middle["divergence"]["before"].endswith("user\nHell")
        assert middle["divergence"]["text"] == "a"
        assert middle["divergence"]["after"].startswith("s is far.")
        assert _codes(middle) == ["diverges"]

        argued = await _foretold(
            stack, {**first, "chat_template_kwargs": {"enable_thinking": False}}
        )
        assert (argued["outcome"], argued["reused_tokens"]) == ("miss", 0)
        assert argued["other_rendering"]["matched_tokens"] == argued["prompt_tokens"]
        assert argued["other_rendering"]["differs"] == "chat_template_kwargs"
        assert _codes(argued) == ["rendering:chat_template_kwargs"]

        short = await _foretold(stack, {"prompt": "Hi"})
        assert short["outcome"] == "miss"
        assert short["donation_reason"] == "prefix_too_short"
        assert _codes(short) == ["prefix_too_short"]


async def test_tools_in_another_order_and_a_date(tiny_models: TinyModels, tmp_path: Path) -> None:
    async with open_stack(tiny_models.folder("llama"), tmp_path) as stack:
        await stack.chat(talk("Hi"), tools=TOOLS)
        turned = await _foretold(stack, {"messages": talk("Hi"), "tools": TOOLS[::-1]})
        assert turned["other_rendering"]["differs"] == "tools_order"
        assert _codes(turned)[0] == "rendering:tools_order"
        bare = await _foretold(stack, {"messages": talk("Hi")})
        assert bare["other_rendering"] is None  # nothing tells from which tools it would come

        await stack.chat(talk("Hi", system=f"{SYSTEM} Today is 2026-03-01."))
        dated = await _foretold(
            stack, {"messages": talk("Hi", system=f"{SYSTEM} Today is 2026-03-02.")}
        )
        assert dated["divergence"]["text"] == "2"
        assert _codes(dated) == ["changing_text"]


async def test_it_renders_what_the_public_api_renders(
    tiny_models: TinyModels, tmp_path: Path
) -> None:
    async with open_stack(tiny_models.folder("llama"), tmp_path) as stack:
        for number in range(2):
            line = f"x-anthropic-billing-header: cch={number};\n"
            told = await _foretold(stack, {"messages": talk("Hello!", system=line + SYSTEM)})
        assert told["reused_tokens"] == told["prompt_tokens"] - 1
        strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
        await _foretold(stack, {"messages": talk("Hello!"), "tools": strict})
        await _foretold(stack, {"messages": talk("Hi!"), "tools": TOOLS, "tool_choice": "none"})


@pytest.mark.parametrize(
    "flags", [{"kv_backend": "dense"}, {"apc.enabled": False}], ids=["dense", "apc off"]
)
async def test_a_partial_match_where_whole_entries_are_needed(
    tiny_models: TinyModels, tmp_path: Path, flags: dict[str, Any]
) -> None:
    async with open_stack(tiny_models.folder("llama"), tmp_path, **flags) as stack:
        first = "a" * 50
        answer = await stack.complete(first)
        part = await _foretold(stack, {"prompt": "a" * 40 + "b" * 20})
        assert (part["outcome"], part["reason"]) == ("reject", "mode_mismatch")
        assert part["entry"]["matched_tokens"] == 40
        assert _codes(part) == ["mode_mismatch", "diverges"]
        assert answer["usage"]["prompt_tokens"] == 50


async def test_a_prompt_that_is_larger_than_the_store(
    tiny_models: TinyModels, tmp_path: Path
) -> None:
    flags = {"prompt_cache.capacity_bytes": 10_000}
    async with open_stack(tiny_models.folder("llama"), tmp_path, **flags) as stack:
        told = await _foretold(stack, {"prompt": "a" * 100})
        assert (told["outcome"], told["donation_reason"]) == ("miss", "oversized")
        assert _codes(told) == ["oversized"]


async def test_what_the_cache_explains_is_what_is_told(
    tiny_models: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explain(
        self: PromptCache, bucket: Bucket, session: str, tokens: list[int]
    ) -> ExplainReport:
        return ExplainReport(
            ExplainOutcome.REJECT,
            store="kv",
            kind="blocks",
            prompt_tokens=len(tokens),
            reused_tokens=0,
            min_prefix=32,
            reason=RejectReason.BLOCK_BOUNDARY_FLOOR,
        )

    monkeypatch.setattr(PromptCache, "explain", explain)
    async with open_stack(tiny_models.folder("llama"), tmp_path) as stack:
        told = await stack.order("POST", "cache/explain", {"prompt": "a" * 40})
        assert (told["outcome"], told["reason"]) == ("reject", "block_boundary_floor")
        assert _codes(told) == ["block_boundary_floor"]


async def test_a_disabled_store(tiny_models: TinyModels, tmp_path: Path) -> None:
    flags = {"prompt_cache.enabled": False}
    async with open_stack(tiny_models.folder("llama"), tmp_path, **flags) as stack:
        told = await _foretold(stack, {"prompt": "a" * 50})
        assert (told["outcome"], told["donation_reason"]) == ("disabled", "disabled")
        assert _codes(told) == ["disabled"]


async def test_bad_bodies_are_refused_with_their_field(
    tiny_models: TinyModels, tmp_path: Path
) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({}, "messages"),
        ({"messages": [], "prompt": "x"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": talk("x"), "tools": [1]}, "tools[0]"),
        ({"messages": talk("x"), "chat_template_kwargs": 3}, "chat_template_kwargs"),
        ({"messages": talk("x"), "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"prompt": [1, 99_999_999_999]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": "x", "session": 3}, "session"),
        ({"mesages": talk("x")}, "messages"),
        ({"prompt": ["x", "y"]}, "prompt"),
        ({"messages": talk("x"), "api": "rest"}, "api"),
    ]
    async with open_stack(tiny_models.folder("llama"), tmp_path) as stack:
        for body, field in bad:
            response = await stack.admin.post(f"{PREFIX}/cache/explain", json=body)
            answer = await response.json()
            assert "error" in answer, (body, answer)
            error = answer["error"]
            assert (response.status, error["details"]["field"]) == (400, field), error
        response = await stack.admin.post(f"{PREFIX}/cache/explain", data=b"{}")
        assert response.status == 415
        # A long prompt is taken as far as the public API takes it.
        for words, status in ((10_000, 200), (40_000, 400)):
            body = {"prompt": "word " * words}
            response = await stack.admin.post(f"{PREFIX}/cache/explain", json=body)
            assert response.status == status, await response.text()
        assert "maximum context length" in await response.text()
