"""What a tool is described with: nothing that is null, and everything that a template reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxceld.models.fitting.conversation import Conversation, Message


def without_nulls(tool: Mapping[str, Any]) -> Message:
    """A tool without fields that are null; those are absent."""
    kept = {key: value for key, value in tool.items() if value is not None}
    function = kept.get("function")
    if isinstance(function, Mapping):
        inner = {key: value for key, value in function.items() if value is not None}
        parameters = inner.get("parameters")
        if isinstance(parameters, Mapping) and parameters.get("properties", ...) is None:
            inner["parameters"] = {k: v for k, v in parameters.items() if k != "properties"}
        kept["function"] = inner
    return kept


def fill_tools(conversation: Conversation) -> Conversation:
    """Each tool has a description and parameters with properties, if only empty ones."""
    tools = conversation.tools
    if not tools:
        return conversation
    return Conversation(conversation.messages, [_filled(tool) for tool in tools])


def _filled(tool: Message) -> Message:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return tool
    parameters = function.get("parameters")
    filled = {
        "description": "",
        **function,
        "parameters": {
            "type": "object",
            "properties": {},
            **(parameters if isinstance(parameters, Mapping) else {}),
        },
    }
    return {**tool, "function": filled}
