"""What a call's arguments are: an object where they are one, and what stands in for others."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from mlxceld.models.fitting.conversation import Conversation

UNREAD = "arguments"
"""The key under which text that is no JSON object stands, where a template wants an object."""


def read_arguments(given: object) -> dict[str, Any] | str:
    """The arguments of a call as an object, or as text where they are none.

    Nothing (null, absent, empty text) is an object without keys. Text is read if it is the JSON
    of an object that can be written again; any other text stays as it is.
    """
    if given is None or given == "":
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, str):
        return json.dumps(given, ensure_ascii=False)
    try:
        read = json.loads(given, parse_constant=_refuse, parse_float=_finite)
        if "\\u" in given:
            # Half a character would come out, which no tokenizer takes.
            json.dumps(read, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return given
    return read if isinstance(read, dict) else given


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is out of range")
    return number


def wrap_unread_arguments(conversation: Conversation) -> Conversation:
    """Arguments that are no object stand, as text, in an object."""
    return _with_arguments(
        conversation, lambda given: {UNREAD: given} if isinstance(given, str) else given
    )


def arguments_as_text(conversation: Conversation) -> Conversation:
    """Arguments that are an object are written as JSON text."""
    return _with_arguments(
        conversation,
        lambda given: given if isinstance(given, str) else json.dumps(given, ensure_ascii=False),
    )


def _with_arguments(conversation: Conversation, change: Callable[[Any], Any]) -> Conversation:
    messages = []
    for message in conversation.messages:
        if calls := message.get("tool_calls"):
            changed = []
            for call in calls:
                function = call["function"]
                arguments = change(function["arguments"])
                changed.append({**call, "function": {**function, "arguments": arguments}})
            message = {**message, "tool_calls": changed}
        messages.append(message)
    return conversation.with_messages(messages)
