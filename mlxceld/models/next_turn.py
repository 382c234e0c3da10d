"""What of a reply's tokens the next turn's prompt will have again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from mlxceld.models.boundaries import common_prefix

Keeps = Callable[[Sequence[int]], int]
"""Of prompt and reply, how many leading tokens the next turn's rendering begins with."""


class Codec(Protocol):
    """What is asked of the tokenizer and the chat template."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of the tokens."""

    def next_turn(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The tokens that the next turn begins with; ``messages`` ends with the reply."""


def kept_after(
    codec: Codec,
    prompt: Sequence[int],
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    template_kwargs: Mapping[str, Any] | None,
    continued: bool,
) -> Keeps:
    """What tells this of the replies to a rendered conversation; for any thread.

    Templates drop thinking from what they render again, and a text need not become the tokens that
    it was generated as. The caller is expected to send the reply's text as it got it. ``continued``
    replies go on with the last message.
    """

    def keeps(tokens: Sequence[int]) -> int:
        reply = codec.decode(tokens[len(prompt) :])
        before, begun = (messages[:-1], messages[-1]) if continued else (messages, {})
        text = f"{begun.get('content') or ''}{reply}"
        told = [*before, {**begun, "role": "assistant", "content": text}]
        again = codec.next_turn(told, tools=tools, template_kwargs=template_kwargs)
        return common_prefix(again, tokens)

    return keeps
