"""What the engine tells a caller about its request, in order. No MLX in here."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class FinishReason(enum.StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"


class FailureKind(enum.StrEnum):
    """What kind of fault failed a request."""

    REQUEST = "request_fault"
    ENGINE = "engine_fault"
    SHUTDOWN = "shutting_down"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its natural log-probability before sampling filters.

    ``text`` is how the token reads alone (U+FFFD where it is a part of a character);
    ``raw`` its exact bytes.
    """

    token: int
    text: str
    raw: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """The prompt is being computed: ``done`` of ``total`` tokens, ``cached`` of them reused."""

    done: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class Delta:
    """More of the answer. ``text`` never ends inside a character or a possible stop string."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. ``completion_tokens`` leaves out the end-of-sequence token."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request that ended by itself, by a limit or by a cancel.

    Times are seconds; ``stop_text`` is the stop string that was met, if one was.
    """

    reason: FinishReason
    usage: Usage
    stop_text: str | None = None
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a request that a fault ended."""

    kind: FailureKind
    message: str
    usage: Usage


Event = PrefillProgress | Delta | Finished | Failed
