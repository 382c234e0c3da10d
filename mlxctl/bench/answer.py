"""One streamed answer: what came, and when."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

_TEXT_FIELDS = ("content", "reasoning", "reasoning_content")


@dataclass
class Answer:
    """What a request got. Times are in seconds; ``sent`` counts from the scenario's begin.

    ``arrivals`` are the seconds from sending to each event that brought text or a call. Token
    counts are the server's own, and None where it does not tell. ``rendered_tokens`` is the prompt
    as this side renders it. ``late`` marks the requests that a scenario lets come in between.
    """

    conversation: int
    turn: int
    late: bool = False
    sent: float = 0.0
    ended: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    text: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    rendered_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """In JSON's types, times to the microsecond."""
        plain = asdict(self)
        plain["arrivals"] = [round(at, 6) for at in self.arrivals]
        return {**plain, "sent": round(self.sent, 6), "ended": round(self.ended, 6)}

    @property
    def ttft(self) -> float | None:
        """Seconds to the first text; None if there was none."""
        return self.arrivals[0] if self.arrivals else None

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """Begin and end of the time between each text and the next, from the scenario's begin."""
        at = [self.sent + arrival for arrival in self.arrivals]
        return list(itertools.pairwise(at))

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second after the first."""
        if not self.completion_tokens or self.completion_tokens < 2 or len(self.arrivals) < 2:
            return None
        took = self.arrivals[-1] - self.arrivals[0]
        return (self.completion_tokens - 1) / took if took > 0 else None


def has_text(chunk: bytes) -> bool:
    """Whether a piece of a stream holds a whole event that brings text."""
    answer = Answer(0, 0)
    read_stream(answer, [(0.0, chunk)])
    return bool(answer.arrivals)


def read_stream(answer: Answer, chunks: Sequence[tuple[float, bytes]]) -> None:
    """Fill in an answer from what came over the wire, each piece with its time of arrival."""
    done = False
    for at, line in _lines(chunks):
        if not line.startswith(b"data:"):
            continue
        payload = line[5:].strip()
        if payload == b"[DONE]":
            done = True
            continue
        try:
            event = json.loads(payload)
        except ValueError:
            answer.error = answer.error or f"an event is no JSON: {payload[:200]!r}"
            continue
        _take(answer, at, event)
    if not done and answer.error is None:
        answer.error = "the stream ended before its last event"


def _take(answer: Answer, at: float, event: Any) -> None:
    if not isinstance(event, dict) or event.get("error"):
        answer.error = answer.error or f"the stream says: {json.dumps(event)[:500]}"
        return
    if usage := event.get("usage"):
        answer.prompt_tokens = usage.get("prompt_tokens")
        answer.completion_tokens = usage.get("completion_tokens")
        answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if delta.get("tool_calls") or any(delta.get(name) for name in _TEXT_FIELDS):
            answer.arrivals.append(at)
        answer.text += delta.get("content") or ""
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason


def _lines(chunks: Iterable[tuple[float, bytes]]) -> Iterable[tuple[float, bytes]]:
    """Whole lines, each with the time of the piece that ended it."""
    rest = b""
    for at, chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield at, line.rstrip(b"\r")
