"""The soak's verdicts: each check is seen to fail on what it is there for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from soak_checks import (
    Sample,
    counters_agree,
    log_agrees,
    memory_is_flat,
    stats_add_up,
    trend,
    ttft_is_level,
)
from soak_dialects import Answer, read_stream, read_whole
from soak_load import Outcome

from mlxceld.telemetry.cache_stats import CacheStats

MIB = 1 << 20


def _outcome(number: int = 1, **values: Any) -> Outcome:
    fields: dict[str, Any] = {
        "kind": "chat",
        "path": "/v1/chat/completions",
        "request_id": f"soak-1-{number}",
        "sequences": 1,
        "ended": "done",
        "answer": Answer(usage=(20, 16, 4), complete=True),
    }
    return Outcome(number, **{**fields, **values})


def _line(request_id: str = "soak-1-1", **values: Any) -> dict[str, Any]:
    fields = {"endpoint": "chat", "outcome": "stop", "prompt_tokens": 20, "cached_tokens": 16}
    return {"id": request_id, **fields, "completion_tokens": 4, **values}


def test_a_line_is_found_through_points() -> None:
    line = trend([(0, 10 * MIB), (1000, 11 * MIB), (2000, 12 * MIB), (3000, 13 * MIB)])
    assert line.slope == pytest.approx(MIB / 1000)
    assert line.rise == pytest.approx(3 * MIB)
    assert line.error == pytest.approx(0, abs=1e-6)
    assert not line.flat(0.03)
    assert line.flat(0.3)
    assert "+1,048,576" in str(line)


def test_memory_that_grows_is_told_from_memory_that_varies() -> None:
    noise = [0, 3, -2, 1, -3, 2, -1, 0] * 20
    level = [Sample(i * 100, (200 + n) * MIB, 12 * MIB) for i, n in enumerate(noise)]

    def verdicts(samples: list[Sample]) -> list[bool]:
        return [check.passed for check in memory_is_flat(samples, 0.03)]

    assert verdicts(level) == [True, True, True]
    grows = [replace(s, process=s.process + i * MIB // 2) for i, s in enumerate(level)]
    assert verdicts(grows) == [False, False, True]
    kept = [replace(s, process=s.process + i % 6 * i * MIB // 6) for i, s in enumerate(level)]
    assert verdicts(kept) == [False, True, True]
    leaks = [replace(s, active=s.active + i * 10_000) for i, s in enumerate(level)]
    assert verdicts(leaks) == [True, True, False]
    # What is taken in the first fifth is no growth.
    begins = [replace(s, process=s.process // 2) if s.requests < 3000 else s for s in level]
    assert verdicts(begins) == [True, True, True]
    assert verdicts(level[:2]) == [False]


def test_requests_that_become_slower() -> None:
    level = [_outcome(i, ttft=0.1) for i in range(200)]
    assert ttft_is_level(level).passed
    assert not ttft_is_level([*level[:170], *(_outcome(i, ttft=0.12) for i in range(30))]).passed
    assert not ttft_is_level(level[:5]).passed


def test_sums_that_do_not_add_up_are_named() -> None:
    stats = CacheStats(lookups=3, hits=1, misses=2, inserts=4, entries=1, evictions_flush=3)
    assert stats_add_up(stats.as_dict()) == ""
    wrong = replace(stats, inserts=5, prompt_tokens=7, snapshot_entries_head=1)
    assert stats_add_up(wrong.as_dict()) == (
        "inserts is 5, not 4; prompt_tokens is 7, not 0; 1 snapshots by kind, 0 in all"
    )


def test_each_request_has_its_line() -> None:
    assert log_agrees([_outcome()], [_line()]) == []
    (lost,) = log_agrees([_outcome()], [])
    assert "[0] lines" in lost
    (twice,) = log_agrees([_outcome()], [_line(), _line()])
    assert "[2] lines" in twice
    (usage,) = log_agrees([_outcome()], [_line(cached_tokens=0)])
    assert "usage is (4, 20, 16), logged (4, 20, 0)" in usage
    (ended,) = log_agrees([_outcome()], [_line(outcome="cancelled")])
    assert "told of an end" in ended
    (stranger,) = log_agrees([], [_line(), _line("warm-1")])
    assert stranger.startswith("soak-1-1 is logged")


def test_choices_have_a_line_each() -> None:
    two = _outcome(sequences=2, answer=Answer(usage=(20, 16, 8), complete=True))
    lines = [_line("soak-1-1-0"), _line("soak-1-1-1")]
    assert log_agrees([two], lines) == []
    assert log_agrees([two], lines[:1])


@pytest.mark.parametrize("lines", [[], [_line(outcome="cancelled")], [_line(outcome="length")]])
def test_who_leaves_may_or_may_not_have_been_served(lines: list[dict[str, Any]]) -> None:
    left = _outcome(ended="left", answer=None)
    assert log_agrees([left], lines) == []
    refused = _outcome(ended="refused", sequences=0, answer=None)
    assert bool(log_agrees([refused], lines)) == bool(lines)


def test_counters_are_the_sums_of_the_log() -> None:
    lines = [_line(), _line("soak-1-2", outcome="length"), _line("warm-1")]
    metrics = {
        f'mlxcel_requests_total{{endpoint="{endpoint}",outcome="{outcome}"}}': 0.0
        for endpoint in ("chat", "completions", "messages", "responses")
        for outcome in ("stop", "length", "cancelled", "timeout", "error", "rejected")
    }
    metrics |= {
        'mlxcel_requests_total{endpoint="chat",outcome="stop"}': 1.0,
        'mlxcel_requests_total{endpoint="chat",outcome="length"}': 1.0,
        "mlxcel_completion_tokens_total": 8.0,
    }
    assert counters_agree(metrics, lines) == ""
    metrics["mlxcel_completion_tokens_total"] = 12.0
    assert counters_agree(metrics, lines) == "mlxcel_completion_tokens_total is 12, logged 8"
    assert "chat" in counters_agree(metrics, lines[1:])


async def test_a_stream_that_merely_stops_is_not_complete() -> None:
    async def lines(*texts: bytes) -> Any:
        for text in texts:
            yield text

    async def read(path: str, *texts: bytes) -> Answer:
        answer = Answer()
        async for _ in read_stream(path, lines(*texts), answer):
            pass
        return answer

    word = b'data: {"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}\n'
    cut = await read("/v1/completions", word)
    assert (cut.text, cut.reasons, cut.complete) == ("a", ["stop"], False)
    assert (await read("/v1/completions", word, b"data: [DONE]\n")).complete
    failed = await read("/v1/completions", b'data: {"error": {"code": "x", "message": "y"}}\n')
    assert failed.error == "x"
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    usage |= {"prompt_tokens_details": {"cached_tokens": 1}}  # type: ignore[dict-item]
    body = {"choices": [{"message": {"content": "b"}, "finish_reason": "length"}], "usage": usage}
    assert read_whole("/v1/chat/completions", body).usage == (3, 1, 2)
