"""From the items of a response's input to messages in the shape of chat completions."""

from __future__ import annotations

from typing import Any

from mlxceld.api.body import describe
from mlxceld.api.errors import invalid

_TEXT_PARTS = frozenset({"input_text", "output_text", "text"})
_ROLES = frozenset({"system", "developer", "user", "assistant"})


def messages_of(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages that an input is; raises a 400 ApiError that names the item at fault.

    What an assistant thought, said and called in one answer is several items and one message.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    for index, item in enumerate(given):
        _add(messages, item, f"input[{index}]")
    return messages


def _add(messages: list[dict[str, Any]], item: dict[str, Any], where: str) -> None:
    kind = item.get("type", "message" if "role" in item else None)
    match kind:
        case "message":
            role = item.get("role")
            if role not in _ROLES:
                raise _wrong(item, "role", where, "'system', 'developer', 'user' or 'assistant'")
            content = _content(item.get("content"), f"{where}.content")
            if role != "assistant":
                messages.append({"role": role, "content": content})
                return
            message = _assistant(messages, fresh=("content", "tool_calls"))
            message["content"] = content
        case "reasoning":
            parts = item.get("content") or item.get("summary") or []
            text = "\n".join(
                part["text"]
                for part in parts
                if isinstance(part, dict) and isinstance(part.get("text"), str)
            )
            message = _assistant(messages, fresh=("reasoning_content", "content", "tool_calls"))
            if text:
                message["reasoning_content"] = text
        case "function_call":
            function = {
                "name": _string(item, "name", where),
                "arguments": _string(item, "arguments", where),
            }
            call = {
                "id": _string(item, "call_id", where),
                "type": "function",
                "function": function,
            }
            message = _assistant(messages, fresh=())
            message.setdefault("tool_calls", []).append(call)
        case "function_call_output":
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": _string(item, "call_id", where),
                    "content": _content(item.get("output"), f"{where}.output"),
                }
            )
        case _:
            raise _wrong(
                item,
                "type",
                where,
                "'message', 'function_call', 'function_call_output' or 'reasoning'",
            )


def _assistant(messages: list[dict[str, Any]], *, fresh: tuple[str, ...]) -> dict[str, Any]:
    """The assistant's message to add to; a new one if the last has any of ``fresh`` already."""
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant" or any(last.get(name) for name in fresh):
        last = {"role": "assistant", "content": ""}
        messages.append(last)
    return last


def _content(content: Any, path: str) -> Any:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(path, f"{path} is {describe(content)}, expected a string or a list of parts")
    parts = []
    for index, part in enumerate(content):
        where = f"{path}[{index}]"
        if not isinstance(part, dict):
            raise invalid(where, f"{where} is {describe(part)}, expected an object")
        if part.get("type") == "refusal":
            parts.append({"type": "text", "text": _string(part, "refusal", where)})
            continue
        if part.get("type") not in _TEXT_PARTS:
            raise _wrong(part, "type", where, "'input_text' or 'output_text'")
        parts.append({"type": "text", "text": _string(part, "text", where)})
    # One part alone is a string, as other dialects send it.
    return parts[0]["text"] if len(parts) == 1 else parts or ""


def _string(item: dict[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _wrong(item, name, where, "a string")
    return value


def _wrong(item: dict[str, Any], name: str, where: str, expected: str) -> Exception:
    path = f"{where}.{name}"
    if item.get(name) is None:
        return invalid(path, f"{path} is missing", code="missing_required_parameter")
    return invalid(path, f"{path} is {describe(item[name])}, expected {expected}")
