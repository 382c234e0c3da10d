"""Answers are read from the events of either server, with the time of each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlxctl.bench.answer import Answer, has_text, read_stream


def event(**fields: Any) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


def delta(**fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": None}])


USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 4},
}
END = event(choices=[{"index": 0, "delta": {}, "finish_reason": "length"}])


def read(*pieces: bytes) -> Answer:
    answer = Answer(0, 0, sent=10.0)
    read_stream(answer, [(float(at), piece) for at, piece in enumerate(pieces)])
    return answer


def test_text_usage_and_times():
    answer = read(
        delta(role="assistant", content=""),
        delta(content="a"),
        b": keep-alive\n\n",
        delta(content="b") + delta(content="c"),
        END + event(choices=[], usage=USAGE) + b"data: [DONE]\n\n",
    )
    assert (answer.text, answer.arrivals, answer.ttft) == ("abc", [1.0, 3.0, 3.0], 1.0)
    assert answer.gaps == [(11.0, 13.0), (13.0, 13.0)]
    assert answer.decode_rate == 1.0  # two more tokens in two seconds
    counts = (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens)
    assert (counts, answer.finish_reason, answer.error) == ((9, 3, 4), "length", None)


@pytest.mark.parametrize("field", ["content", "reasoning", "reasoning_content"])
def test_reasoning_is_a_first_token_too(field):
    assert read(delta(**{field: "x"}), b"data: [DONE]\n\n").arrivals == [0.0]
    assert has_text(delta(**{field: "x"}))
    assert not has_text(delta(role="assistant", content=""))


def test_a_server_that_does_not_tell_what_it_cached_has_none_not_0():
    answer = read(event(choices=[], usage={"prompt_tokens": 9}) + b"data: [DONE]\n\n")
    assert answer.cached_tokens is None


def test_a_line_may_come_in_pieces():
    whole = delta(content="ä")
    assert read(whole[:30], whole[30:], b"data: [DONE]\n\n").arrivals == [1.0]


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([delta(content="a")], "ended before its last event"),
        ([event(error={"message": "out of memory"})], "out of memory"),
        ([b"data: {oops\n\n", b"data: [DONE]\n\n"], "no JSON"),
    ],
)
def test_a_stream_that_fails_says_so(pieces, said):
    assert said in read(*pieces).error
