"""The messages of a chat request, as clients send them, in the one shape of a conversation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mlxceld.api.body import describe
from mlxceld.api.errors import ApiError, invalid
from mlxceld.api.notes import Notes
from mlxceld.api.openai.schemas import ContentPart, Message, ToolCall
from mlxceld.api.unseen import left_out

_TEXT = frozenset({"text", "input_text", "output_text"})
_THOUGHT = frozenset({"thinking", "reasoning"})
_IMAGES = frozenset({"image_url", "input_image", "image"})

_MAY_BE_SILENT = frozenset({"assistant", "tool", "function"})
"""Roles whose messages may come without content."""


def messages_of(messages: Sequence[Message], notes: Notes) -> list[dict[str, Any]]:
    """Messages for the template; raises a 400 ApiError that names the part at fault.

    Text parts stay parts, absent content is empty text. Calls have an id, a type and arguments as
    JSON text or as the object that was sent. What the assistant thought is ``reasoning_content``.
    What is left out of a tool's result is noted.
    """
    history = _History(notes)
    return [
        history.convert(message, f"messages[{index}]") for index, message in enumerate(messages)
    ]


class _History:
    """Keeps count of calls, so that those without an id get one, and their results the same."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._calls = 0
        self._unanswered: list[tuple[str, str]] = []

    def convert(self, message: Message, path: str) -> dict[str, Any]:
        _check(message, path)
        content, thoughts = _content(message, path, self._notes)
        if message.role == "function":
            # The form before there were tools: a result names its function and has no id.
            return {
                "role": "tool",
                "content": content,
                **({"name": message.name} if message.name else {}),
                "tool_call_id": self._answers(message.name),
            }
        converted: dict[str, Any] = {"role": message.role, "content": content}
        if message.name is not None:
            converted["name"] = message.name
        if message.role == "tool":
            converted["tool_call_id"] = self._answered(message.tool_call_id)
        elif message.role == "assistant":
            if calls := self._calls_of(message, path):
                converted["tool_calls"] = calls
            if thought := _thought(message) or "\n".join(thoughts):
                converted["reasoning_content"] = thought
        return converted

    def _calls_of(self, message: Message, path: str) -> list[dict[str, Any]]:
        calls = []
        for index, call in enumerate(message.tool_calls or ()):
            name, arguments = _called(call, f"{path}.tool_calls[{index}]")
            calls.append(self._call(call.id, name, arguments))
        if message.function_call is not None and not calls:
            function = message.function_call
            calls.append(self._call(None, function.name, function.arguments))
        return calls

    def _call(self, given: str | None, name: str, arguments: Any) -> dict[str, Any]:
        call_id = given or f"call_{self._calls}"
        self._calls += 1
        self._unanswered.append((call_id, name))
        return {
            "id": call_id,
            "type": "function",
            # An object goes to the template as it was sent, with its keys in their order.
            "function": {"name": name, "arguments": "{}" if arguments is None else arguments},
        }

    def _answered(self, given: str | None) -> str:
        if given is None:
            return self._answers(None)
        self._unanswered = [call for call in self._unanswered if call[0] != given]
        return given

    def _answers(self, name: str | None) -> str:
        """The id of the first call without a result, of this function if a name is given."""
        for index, (call_id, called) in enumerate(self._unanswered):
            if name in (None, called):
                del self._unanswered[index]
                return call_id
        return f"call_{self._calls}"


def _check(message: Message, path: str) -> None:
    if message.audio is not None:
        raise invalid(
            f"{path}.audio", f"{path}.audio is an object, expected null; this model takes text"
        )
    if "content" in message.model_fields_set or message.role in ("tool", "function"):
        return
    says = (message.tool_calls, message.function_call, message.refusal, _thought(message))
    if message.role == "assistant" and any(says):
        return
    raise invalid(
        f"{path}.content",
        f"{path}.content is missing, expected text; only an assistant message with tool_calls"
        " and a tool's may have none",
        code="missing_required_parameter",
    )


def _content(
    message: Message, path: str, notes: Notes
) -> tuple[str | list[dict[str, Any]], list[str]]:
    """The text of a message, whole or in parts, and what parts of it are thoughts."""
    if message.content is None:
        return message.refusal or "", []
    if isinstance(message.content, str):
        return message.content, []
    parts: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for index, part in enumerate(message.content):
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
            continue
        where = f"{path}.content[{index}]"
        if part.type in _THOUGHT and message.role == "assistant":
            thoughts.append(_part_thought(part))
            continue
        if part.type in _IMAGES and message.role in ("tool", "function"):
            text = left_out(part.type, where, notes)
        else:
            text = _part_text(part, where)
        parts.append({"type": "text", "text": text})
    return parts or "", thoughts


def _part_text(part: ContentPart, where: str) -> str:
    name = "refusal" if part.type == "refusal" else "text"
    if part.type is not None and part.type not in _TEXT and part.type != "refusal":
        path = f"{where}.type"
        raise invalid(
            path,
            f"{path} is {describe(part.type)}, expected 'text', 'input_text', 'output_text' or"
            " 'refusal'; this model takes text",
        )
    text = part.refusal if name == "refusal" else part.text
    if text is None:
        raise _missing(f"{where}.{name}")
    return text


def _part_thought(part: ContentPart) -> str:
    """The text of ``{"type": "reasoning", "text"}`` or of ``{"type": "thinking", "thinking"}``."""
    if isinstance(part.thinking, list):
        texts = [one.get("text") for one in part.thinking]
        return "\n".join(text for text in texts if isinstance(text, str))
    return part.thinking or part.text or ""


def _thought(message: Message) -> str:
    """What the assistant thought, in whichever field it came."""
    for text in (message.reasoning_content, message.reasoning, message.thinking):
        if isinstance(text, str) and text:
            return text
    details = message.reasoning_details
    texts = [
        detail.get("text") or detail.get("summary")
        for detail in (details if isinstance(details, list) else ())
        if isinstance(detail, dict)
    ]
    return "".join(text for text in texts if isinstance(text, str))


def _called(call: ToolCall, path: str) -> tuple[str, Any]:
    if call.type == "custom":
        if call.custom is None:
            raise _missing(f"{path}.custom")
        given = {"input": call.custom.input or ""}
        return call.custom.name, json.dumps(given, ensure_ascii=False)
    if call.function is None:
        raise _missing(f"{path}.function")
    return call.function.name, call.function.arguments


def _missing(path: str) -> ApiError:
    return invalid(path, f"{path} is missing", code="missing_required_parameter")
