"""In which other way what is stored was rendered: found by trying small changes of the request."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Any

from mlxceld.api.conversation import Conversation
from mlxceld.api.prepare import signature_of
from mlxceld.engine.request import RAW_PROMPT_SIGNATURE

if TYPE_CHECKING:
    from mlxceld.api.prepare import Prepared
    from mlxceld.models.text import TextCodec
    from mlxceld.prompt_cache.explain import ExplainReport

_MOST_ORDERS = 5
"""Of so many tools every order is tried: 120 of them. Of more, every two are swapped."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """A stored prompt that was rendered in another way, and what ``differs`` from this request.

    ``tool`` is the name of the request's first tool that is another one there, if it is a tool.
    """

    matched_tokens: int
    differs: str
    tool: str | None = None


def other_rendering(
    codec: TextCodec, prepared: Prepared | None, report: ExplainReport
) -> Rendering | None:
    """The rendering of which most of this prompt is stored, and more than of its own."""
    own = report.entry.matched_tokens if report.entry is not None else 0
    known = {
        other.signature: other.matched_tokens
        for other in report.other_renderings
        if other.matched_tokens > max(own, report.reused_tokens)
    }
    if not known:
        return None
    if prepared is None:
        return Rendering(max(known.values()), "unknown")
    most = max(known.values())
    differs = "unknown"
    for what, signature in _variants(codec, prepared.conversation):
        # Of those that share as much the first is the smallest change.
        if known.get(signature) == most:
            differs = what
            break
    tool = None
    if differs in ("unknown", "tools", "tools_order"):
        tool = _tool_at(codec, prepared, most)
        if tool is not None and differs == "unknown":
            differs = "tools"
    return Rendering(most, differs, tool)


def _variants(codec: TextCodec, conversation: Conversation) -> Iterator[tuple[str, str]]:
    """Signatures that a small change would give, each with what the change is."""
    own = signature_of(codec, conversation)
    for differs, variant in _changed(conversation):
        signature = signature_of(codec, variant)
        if signature != own:
            yield differs, signature
    yield "raw_prompt", RAW_PROMPT_SIGNATURE


def _changed(conversation: Conversation) -> Iterator[tuple[str, Conversation]]:
    tools = list(conversation.tools or ())
    for order in _orders(tools):
        yield "tools_order", replace(conversation, tools=order)
    given = conversation.template_kwargs or {}
    without = [{k: v for k, v in given.items() if k != name} for name in given]
    flipped = [{**given, k: not v} for k, v in given.items() if isinstance(v, bool)]
    thinking = [{**given, "enable_thinking": value} for value in (True, False)]
    for kwargs in (*flipped, *without, *thinking, {}):
        yield "chat_template_kwargs", replace(conversation, template_kwargs=kwargs or None)
    for choice in (None, "none", "required"):
        yield "tool_choice", replace(conversation, tool_choice=choice)
    for left_out in range(len(tools)):
        kept = tools[:left_out] + tools[left_out + 1 :]
        yield "tools", replace(conversation, tools=kept or None)
    yield "tools", replace(conversation, tools=None)
    yield "tools", replace(conversation, tools=None, tool_choice=None)


def _orders(tools: list[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    if 1 < len(tools) <= _MOST_ORDERS:
        yield from map(list, permutations(tools))
    elif tools:
        for one, other in combinations(range(len(tools)), 2):
            swapped = list(tools)
            swapped[one], swapped[other] = tools[other], tools[one]
            yield swapped


def _tool_at(codec: TextCodec, prepared: Prepared, token: int) -> str | None:
    """The name of the tool in whose definition a token of the prompt is; None if in none.

    Tools stand in the prompt in their order, each from its name to the next one's.
    """
    names = [str(tool["function"]["name"]) for tool in prepared.conversation.tools or ()]
    tokens: Sequence[int] = prepared.prompt.tokens
    if not names or token >= len(tokens):
        return None
    text = codec.decode(list(tokens), skip_special_tokens=False)
    place = len(codec.decode(list(tokens[:token]), skip_special_tokens=False))
    at, found = 0, names[0]
    for name in names:
        start = text.find(f'"{name}"', at)
        if start < 0:
            return None
        if start > place:
            return found
        at, found = start + 1, name
    # After the last one's definition comes the conversation.
    return found if place <= _end_of_object(text, text.rfind("{", 0, at)) else None


def _end_of_object(text: str, start: int) -> int:
    """Where the JSON object that begins at ``start`` ends; the text's end if there is none."""
    try:
        return json.JSONDecoder().raw_decode(text, max(start, 0))[1]
    except ValueError:
        return len(text)
