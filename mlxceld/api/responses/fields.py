"""Every field of a Responses request that is not honoured: refused by name, or ignored and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from mlxceld.api.body import describe
from mlxceld.api.errors import invalid

_NO_CONVERSATIONS = "conversations are not kept here; continue with previous_response_id"


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a field is refused; ``harmless`` are the values that ask for nothing, besides null."""

    why: str
    harmless: tuple[object, ...] = ()


REFUSED: Mapping[str, Refused] = MappingProxyType(
    {
        "background": Refused("responses are answered at once, not in the background", (False,)),
        "conversation": Refused(_NO_CONVERSATIONS),
        "generate": Refused("every request is answered", (True,)),
        "moderation": Refused("nothing is moderated here"),
        "personality": Refused("the model has no style presets"),
        "prompt": Refused("prompt templates are not kept here; send instructions and input"),
        # Fields of the other dialects, which would be lost without a word.
        "functions": Refused("expected the functions in tools"),
        "function_call": Refused("expected tool_choice"),
        "max_completion_tokens": Refused("expected max_output_tokens"),
        "max_tokens": Refused("expected max_output_tokens"),
        "messages": Refused("expected the conversation in input"),
        "n": Refused("a response has one answer", (1,)),
        "reasoning_effort": Refused("expected reasoning.effort"),
        "response_format": Refused("expected text.format"),
        "system": Refused("expected instructions"),
    }
)
"""Fields that carry a part of the conversation or change what the answer is."""

SAMPLING = (
    "frequency_penalty",
    "logit_bias",
    "min_p",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "temperature",
    "top_k",
    "top_p",
)
"""Fields of sampling that are read as chat completions have them."""

IGNORED: Mapping[str, str] = MappingProxyType(
    {
        "access_programs": "about the vendor's access checks",
        "background_options": "about background responses, which are refused",
        "client_metadata": "about the client",
        "image": "about images, which are refused where they stand",
        "max_tool_calls": "counts calls that the vendor's server runs; none are run here",
        "prompt_cache_options": "every prompt is cached; `prewarm` true is refused",
        "prompt_cache_retention": "how long prompts stay cached is the daemon's setting",
        "safety_identifier": "names the end user to the vendor",
        "service_tier": "there is one tier",
        "stream_options": "asks for padding of stream events",
    }
)
"""Fields that cannot change the answer, and why."""

NOTED: Mapping[str, str] = MappingProxyType(
    {
        "context_management": "nothing is compacted; the whole conversation is the prompt",
        "truncation": "nothing is dropped; a prompt that is too long is an error",
    }
)
"""Fields that ask to shorten a prompt that is too long. One that fits is answered just the same;
one that does not fit is refused as it is without them. A note says so."""


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """Raise the 400 ApiError about the first field of ``body`` that is refused."""
    for name, refused in REFUSED.items():
        value = body.get(name)
        if value is None or any(value is one or value == one for one in refused.harmless):
            continue
        raise _unsupported(name, value, refused.why)
    options = body.get("prompt_cache_options")
    if isinstance(options, dict) and options.get("prewarm") is True:
        raise _unsupported("prompt_cache_options.prewarm", True, "every request is answered")


def _unsupported(param: str, value: object, why: str) -> Exception:
    return invalid(
        param,
        f"{param} is {describe(value)}, which is not supported: {why}",
        code="unsupported_parameter",
    )
