"""What the steps of a fitting work on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]

SYSTEM_ROLES = frozenset({"system", "developer"})
"""The roles of texts that are not said by anybody in the conversation."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Prepared messages (their content is text) and the tools that the model may call."""

    messages: list[Message]
    tools: list[Message] | None = None

    def with_messages(self, messages: list[Message]) -> Conversation:
        """The same tools with other messages."""
        return Conversation(messages, self.tools)


@dataclass(frozen=True, slots=True)
class Step:
    """One change that some chat templates need.

    ``apply`` gives a conversation of the same meaning. It changes nothing where there is nothing
    to change, looks at no more than neighbours, and does the same to a conversation's beginning
    whatever comes after it: a turn's prompt stays the beginning of the next turn's. ``about``
    says what the step does, in a few words.
    """

    name: str
    about: str
    apply: Callable[[Conversation], Conversation]


def join_texts(*texts: str) -> str:
    """Texts parted by a blank line; empty ones are left out."""
    return "\n\n".join(text for text in texts if text)


def leading_system(messages: list[Message]) -> int:
    """How many messages the conversation begins with that are system or developer texts."""
    count = 0
    while count < len(messages) and messages[count]["role"] in SYSTEM_ROLES:
        count += 1
    return count


def user_turn(text: str) -> Message:
    """A turn of the user."""
    return {"role": "user", "content": text}
