"""Steps for the order of turns: who begins, and whose turns may follow each other."""

from __future__ import annotations

from collections.abc import Callable

from mlxceld.models.fitting.conversation import (
    Conversation,
    Message,
    join_texts,
    leading_system,
    user_turn,
)

_OPENING = "."
"""What the user says where a template wants a turn of the user that nobody took."""


def leading_user(conversation: Conversation) -> Conversation:
    """The first turn after the system text is the user's, if only a dot."""
    messages = conversation.messages
    count = leading_system(messages)
    if count < len(messages) and messages[count]["role"] == "user":
        return conversation
    return conversation.with_messages([*messages[:count], user_turn(_OPENING), *messages[count:]])


def merge_users(conversation: Conversation) -> Conversation:
    """Turns of the user that follow each other are one, their texts parted by a blank line."""
    return _merged(conversation, _merge_users)


def merge_assistants(conversation: Conversation) -> Conversation:
    """The same for the assistant's turns; their calls are one list.

    A text that was said after a call stays a turn of its own: it would come to stand before it.
    """
    return _merged(conversation, _merge_assistants)


def user_into_result(conversation: Conversation) -> Conversation:
    """What the user says right after the result of a tool stands at the end of that result."""
    return _merged(conversation, _merge_into_result)


def _merged(
    conversation: Conversation, merge: Callable[[Message, Message], Message | None]
) -> Conversation:
    merged: list[Message] = []
    for message in conversation.messages:
        both = merge(merged[-1], message) if merged else None
        if both is None:
            merged.append(message)
        else:
            merged[-1] = both
    return conversation.with_messages(merged)


def _merge_users(one: Message, other: Message) -> Message | None:
    if one["role"] != "user" or other["role"] != "user":
        return None
    return {**one, "content": join_texts(one["content"], other["content"])}


def _merge_into_result(one: Message, other: Message) -> Message | None:
    if one["role"] != "tool" or other["role"] != "user":
        return None
    return {**one, "content": join_texts(one["content"], other["content"])}


def _merge_assistants(one: Message, other: Message) -> Message | None:
    if one["role"] != "assistant" or other["role"] != "assistant":
        return None
    if one.get("tool_calls") and (other["content"] or other.get("reasoning_content")):
        return None
    merged = {**one, "content": join_texts(one["content"], other["content"])}
    thoughts = [m["reasoning_content"] for m in (one, other) if m.get("reasoning_content")]
    if thoughts:
        merged["reasoning_content"] = join_texts(*thoughts)
    if calls := [*one.get("tool_calls", ()), *other.get("tool_calls", ())]:
        merged["tool_calls"] = calls
    return merged
