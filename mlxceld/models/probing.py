"""What tiny conversations tell of a chat template: how its prompts end, and what fuses with what.

Everything is learned by rendering, from the tokens that renderings have in common. No MLX in here.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

REPLY = "Right."

TURNS = ("And then?", "\n\nSo what?")
"""Two next turns that differ from their first character, stripped or not."""

_OPENINGS = (
    *string.ascii_letters,
    *string.digits,
    *string.punctuation,
    *("\n", "\n\n", "\n\n\n", "\nx", "\n\nx", "\n x", " ", " x", "  x", "\t", "\tx", "\r\nx"),
    *("So", "I", "The", "yes", "no", "1.", "```\nx\n```", "<b>", "**x**", "é", "你", "😀"),
)
"""Beginnings of texts: each may fuse with the end of what the template writes before it."""

_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look.",
            "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
        },
    }
]

FUSED = 4
"""Tokens that a turn's first characters may change in what comes before them."""


class Render(Protocol):
    """Renders a conversation to token ids; raises ChatTemplateError where the template refuses."""

    def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
        add_generation_prompt: bool,
    ) -> list[int]:
        """The token ids of ``messages``, with or without a generation prompt."""


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    low, high = 0, min(len(one), len(other))
    # Slices compare at the speed of C; most of the time the first one decides.
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True)
class Seam:
    """The end of a prompt that a next turn may not repeat: ``generation`` is its last part.

    ``loose`` tokens before it may fuse with a reply's first characters.
    """

    generation: tuple[int, ...]
    loose: int


@dataclass(frozen=True, slots=True)
class View:
    """One way of rendering: the tools and arguments that a request brings."""

    render: Render
    tools: Sequence[Mapping[str, Any]] | None
    template_kwargs: Mapping[str, Any] | None

    def history(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """A conversation without a generation prompt."""
        return self._tokens(messages, False)

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """A conversation with one."""
        return self._tokens(messages, True)

    def without_tools(self) -> View:
        """The same arguments for a conversation that has no tools."""
        return View(self.render, None, self.template_kwargs)

    def key(self, parts: object) -> str:
        """What names ``parts`` under these arguments."""
        return json.dumps([parts, self.template_kwargs], sort_keys=False, default=repr)

    def _tokens(self, messages: Sequence[Mapping[str, Any]], generation: bool) -> list[int]:
        return self.render(
            messages,
            tools=self.tools,
            template_kwargs=self.template_kwargs,
            add_generation_prompt=generation,
        )


def learn_seam(view: View, after_tool: bool, add_generation_prompt: bool) -> Seam:
    """How prompts end, after the user or after the result of a tool."""
    start = _start(after_tool)
    history = view.history(start)
    prompt = view.prompt(start) if add_generation_prompt else history
    end = common_prefix(prompt, history)
    kept = min(
        common_prefix(prompt, view.history([*start, reply_turn(text), user_turn(TURNS[0])]))
        for text in _OPENINGS
    )
    return Seam(tuple(prompt[end:]), max(0, end - kept))


def repeats_in_loops(view: View, lead: list[dict[str, Any]], after_tool: bool) -> bool:
    """Whether a call and its result repeat all of the history before them.

    ``lead`` are messages that the tiny conversation begins with.
    """
    tiny = View(view.render, _TOOLS, view.template_kwargs)
    start = [*lead, *_start(after_tool)]
    prompt = tiny.prompt(start)
    end = common_prefix(prompt, tiny.history(start))
    more = tiny.history([*start, calling_turn(), *following([calling_turn()], "done")])
    return common_prefix(prompt, more) >= end - FUSED


def _start(after_tool: bool) -> list[dict[str, Any]]:
    """A tiny conversation that ends with the user, or with the result of a tool."""
    asked = [user_turn("Hello.")]
    return [*asked, calling_turn(), *following([calling_turn()], "done")] if after_tool else asked


def learn_opening(view: View, like: Sequence[Mapping[str, Any]]) -> int:
    """How many tokens before a turn's first character may fuse with it."""
    one, other = (view.history([*like, *following(like, text)]) for text in TURNS)
    shared = common_prefix(one, other)
    return shared - min(
        common_prefix(one[:shared], view.history([*like, *following(like, text)]))
        for text in _OPENINGS
    )


def calling_turn() -> dict[str, Any]:
    """A reply that calls a tool."""
    function = {"name": "look", "arguments": {"at": "it"}}
    call = {"id": "call00001", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def following(messages: Sequence[Mapping[str, Any]], text: str) -> list[dict[str, Any]]:
    """What comes after a reply: results of the tools it calls, or a turn of the user."""
    calls = messages[-1].get("tool_calls") if messages else None
    if not calls:
        return [user_turn(text)]
    first = calls[0] if isinstance(calls[0], Mapping) else {}
    name = (first.get("function") or {}).get("name")
    result = {"role": "tool", "content": text, "tool_call_id": first.get("id"), "name": name}
    return [{key: value for key, value in result.items() if value is not None}]


def user_turn(text: str) -> dict[str, Any]:
    """A message of the user."""
    return {"role": "user", "content": text}


def reply_turn(text: str) -> dict[str, Any]:
    """A reply of the assistant."""
    return {"role": "assistant", "content": text}
