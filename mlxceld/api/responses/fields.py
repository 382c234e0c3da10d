"""Every field of a Responses request that is not honoured: refused by name, noted or ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from mlxceld.api.body import describe
from mlxceld.api.errors import invalid
from mlxceld.api.notes import Notes

_NO_CONVERSATIONS = "conversations are not kept here; continue with previous_response_id"


@dataclass(frozen=True, slots=True)
class Rule:
    """Why a field is not honoured; ``harmless`` values ask for nothing, as null does."""

    why: str
    harmless: tuple[object, ...] = ()


REFUSED: Mapping[str, Rule] = MappingProxyType(
    {
        "background": Rule("responses are answered at once, not in the background", (False,)),
        "conversation": Rule(_NO_CONVERSATIONS),
        "generate": Rule("every request is answered", (True,)),
        "personality": Rule("the model has no style presets"),
        "prompt": Rule("prompt templates are not kept here; send instructions and input"),
        # Fields of the other dialects, which would be lost without a word.
        "functions": Rule("expected the functions in tools"),
        "function_call": Rule("expected tool_choice"),
        "max_completion_tokens": Rule("expected max_output_tokens"),
        "max_tokens": Rule("expected max_output_tokens"),
        "messages": Rule("expected the conversation in input"),
        "n": Rule("a response has one answer", (1,)),
        "reasoning_effort": Rule("expected reasoning.effort"),
        "response_format": Rule("expected text.format"),
        "system": Rule("expected instructions"),
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

_OTHER_FORM = Rule("it is not enforced; text.format is", ({}, ""))

NOTED: Mapping[str, Rule] = MappingProxyType(
    {
        # A prompt that fits is answered just the same; one that does not is refused as ever.
        "context_management": Rule("nothing is compacted; the whole input is the prompt", ([],)),
        "truncation": Rule(
            "nothing is dropped; a prompt that is too long is an error", ("disabled",)
        ),
        "moderation": Rule("nothing is moderated here"),
        **dict.fromkeys(("grammar", "guided_grammar", "guided_json", "guided_regex"), _OTHER_FORM),
        **dict.fromkeys(("guided_choice", "json_schema", "structured_outputs"), _OTHER_FORM),
    }
)
"""Fields that are skipped with a note."""


def check_fields(body: Mapping[str, Any], notes: Notes) -> None:
    """Note what is skipped; raises the 400 ApiError about the first field that is refused."""
    for name, rule in REFUSED.items():
        if _asks(body.get(name), rule):
            raise _unsupported(name, body[name], rule.why)
    options = body.get("prompt_cache_options")
    if isinstance(options, dict) and options.get("prewarm") is True:
        raise _unsupported("prompt_cache_options.prewarm", True, "every request is answered")
    for name, rule in NOTED.items():
        if _asks(body.get(name), rule):
            notes.skip(name, rule.why)


def _asks(value: object, rule: Rule) -> bool:
    return value is not None and value not in rule.harmless


def _unsupported(param: str, value: object, why: str) -> Exception:
    return invalid(
        param,
        f"{param} is {describe(value)}, which is not supported: {why}",
        code="unsupported_parameter",
    )
