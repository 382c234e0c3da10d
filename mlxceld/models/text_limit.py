"""How much text a model's context can hold, told without tokenizing it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_SHRINKING = 4
"""By how much a normalizer may shorten a text (composed characters, joined spaces), at most."""


def conversation_texts(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> Iterable[str]:
    """Every text of a conversation that its rendering repeats: contents, arguments, tools."""
    for message in messages:
        for name in ("content", "tool_calls", "reasoning_content"):
            yield from _strings(message.get(name))
    yield from _strings(tools)


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)


class TextLimit:
    """The bound of one tokenizer: no token stands for more than ``longest_token_bytes`` bytes.

    ``shrinks`` is for tokenizers with a normalizer, which may shorten a text before.
    """

    def __init__(self, longest_token_bytes: int, *, shrinks: bool = False) -> None:
        self._bytes_per_token = longest_token_bytes * (_SHRINKING if shrinks else 1)

    def bytes_within(self, context_length: int) -> int:
        """More bytes than this are more than ``context_length`` tokens."""
        return context_length * self._bytes_per_token

    def least_tokens(self, texts: Iterable[str]) -> int:
        """As many tokens as the texts are at least."""
        return -(-sum(map(len, texts)) // self._bytes_per_token)
