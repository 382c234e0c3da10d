"""For each reason the shortest situation over HTTP that produces it, and what is told of it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from mlxceld.kv.pool import BlockPool
from mlxceld.prompt_cache.rejects import RejectReason
from stack_harness import Stack, cached, open_stack, series
from tiny_models import TinyModels

PROMPT = "once upon a time there was a cache that said no to nobody"


async def _disabled(stack: Stack) -> int:
    return _fed(await stack.complete(PROMPT))


async def _short(stack: Stack) -> int:
    return _fed(await stack.complete("hi"))


async def _partial(stack: Stack) -> int:
    await stack.complete(PROMPT)
    answer = await stack.complete(PROMPT[:40] + "!" * 20)
    assert cached(answer) == 0
    return 40


async def _empty(stack: Stack) -> int:
    # One place: the second request waits, and is cancelled before anything is computed.
    body = {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "stream": True}
    async with stack.public.post("/v1/completions", json=body) as first:
        await first.content.readline()
        async with stack.public.post(
            "/v1/completions", json=body, headers={"X-Request-Id": "waiting"}
        ):
            await stack.order("DELETE", "requests/waiting")
            await stack.order("POST", "cache/flush", {"dry_run": True})
        return 0


def _fed(answer: dict[str, Any]) -> int:
    """What a request leaves: its prompt and its answer but for the last token."""
    return int(answer["usage"]["total_tokens"]) - 1


CASES: list[tuple[str, dict[str, Any], Any, str, bool]] = [
    ("disabled", {"prompt_cache.enabled": False}, _disabled, "donate", False),
    ("oversized", {"prompt_cache.capacity_bytes": 1000}, _disabled, "donate", False),
    ("prefix_too_short", {}, _short, "donate", False),
    ("mode_mismatch", {"kv_backend": "dense"}, _partial, "adopt", False),
    ("mode_mismatch", {"apc.enabled": False}, _partial, "adopt", False),
    ("empty_set", {"max_batch_size": 1}, _empty, "donate", False),
    ("layout_constraints", {}, _disabled, "donate", True),
]


@pytest.mark.parametrize(
    ("reason", "flags", "situation", "direction", "broken"),
    CASES,
    ids=[f"{case[0]}-{'-'.join(map(str, case[1].values())) or case[3]}" for case in CASES],
)
async def test_one_counter_moves_by_one_and_all_say_the_same(
    tiny_models: TinyModels,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    reason: str,
    flags: dict[str, Any],
    situation: Any,
    direction: str,
    broken: bool,
) -> None:
    caplog.set_level(logging.INFO, logger="mlxceld")
    flags = {"apc.trace": True, **flags}
    async with open_stack(tiny_models.folder("llama"), tmp_path, **flags) as stack:
        if broken:
            # Only now: with a pool like this one the self-check at load would not pass.
            monkeypatch.setattr(BlockPool, "seal", lambda *_: None)
        context_len = await situation(stack)
        stats = await stack.stats()
        counted = {r.value: stats[f"reject_{r}"] for r in RejectReason if stats[f"reject_{r}"]}
        assert counted == {reason: 1}
        assert stats["insert_rejects"] == (direction == "donate")
        assert stats["last_reject_reason"] == reason
        assert stats["last_reject_context_len"] == context_len
        samples = series(await stack.scrape())
        for each in RejectReason:
            name = f'mlxcel_prompt_cache_reject_total{{reason="{each}"}}'
            assert samples[name] == (each == reason)
        newest = await stack.order("GET", "cache/stats")
        assert newest[f"last_reject_{reason}_seq_id"] == stats["last_reject_seq_id"]
        assert newest[f"last_reject_{reason}_context_len"] == context_len
    lines = [m for m in caplog.messages if m.startswith("apc_event=reject")]
    (line,) = lines
    assert f"seq_id={stats['last_reject_seq_id']} " in line
    assert f" reason={reason}" in line
    assert f" context_len={context_len}" in line
    requests = [r.fields for r in caplog.records if r.name == "mlxceld.request"]  # type: ignore[attr-defined]
    (mine,) = [f for f in requests if f["seq_id"] == stats["last_reject_seq_id"]]
    assert mine[f"{direction}_reject"] == reason
    assert PROMPT[:20] not in caplog.text


async def test_the_line_of_a_hit_names_what_was_adopted(
    tiny_models: TinyModels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="mlxceld.request")
    async with open_stack(tiny_models.folder("llama"), tmp_path) as stack:
        for _ in range(2):
            answer = await stack.complete(PROMPT)
        await stack.stats()
    cold, warm = (r.fields for r in caplog.records if r.name == "mlxceld.request")  # type: ignore[attr-defined]
    assert (cold["entry"], warm["entry"]) == (None, "blocks")
    assert (cold["cached_tokens"], warm["cached_tokens"]) == (0, cached(answer))
    for fields in (cold, warm):
        assert fields["adopt_reject"] is fields["donate_reject"] is None
        assert fields["outcome"] == "length"
        for name in ("id", "session", "prompt_tokens", "completion_tokens", "client", "endpoint"):
            assert name in fields
        for name in ("queue_seconds", "prefill_seconds", "decode_seconds"):
            assert fields[name] >= 0


async def test_a_partial_match_is_adopted_where_parts_are(
    tiny_models: TinyModels, tmp_path: Path
) -> None:
    async with open_stack(tiny_models.folder("llama"), tmp_path) as stack:
        await stack.complete(PROMPT)
        assert cached(await stack.complete(PROMPT[:40] + "!" * 20)) == 40
        assert (await stack.stats())["last_reject_reason"] is None


async def test_the_trace_is_switched_while_streams_run(
    tiny_models: TinyModels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Lines are exactly of what happened while it was on; nothing of it waits for the streams."""
    caplog.set_level(logging.INFO, logger="mlxceld.apc")
    async with open_stack(tiny_models.folder("llama"), tmp_path) as stack:
        body = {"prompt": "run on", "max_tokens": 400, "ignore_eos": True, "stream": True}
        async with stack.public.post("/v1/completions", json=body) as running:
            await running.content.readline()
            for number, on in enumerate((True, False, True)):
                await stack.order("PUT", "trace", {"enabled": on})
                await stack.complete(f"window {number} " + PROMPT)
                await stack.stats()
        tail = (await stack.order("GET", "trace?n=256"))["events"]
    stored = [event["seq_id"] for event in tail if event["event"] == "store"]
    assert {2, 3, 4} <= set(stored)
    told = [m for m in caplog.messages if "apc_event=store" in m]
    first = [m for m in told if "seq_id=2 " in m]
    third = [m for m in told if "seq_id=4 " in m]
    assert len(first) == 1
    assert len(third) == 1
    assert not [m for m in caplog.messages if "seq_id=3 " in m]
