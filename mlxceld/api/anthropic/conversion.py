"""From Anthropic's messages, blocks and tools to the common form of a turn."""

from __future__ import annotations

import json
from typing import Any

from mlxceld.api.anthropic.schemas import MessagesRequest, PromptRequest
from mlxceld.api.body import describe
from mlxceld.api.errors import invalid
from mlxceld.api.turn import Turn
from mlxceld.models.reasoning import ReasoningRequest


def turn_of(fields: PromptRequest) -> Turn:
    """The request as a turn; raises a 400 ApiError that names the block at fault."""
    writer = _Conversation()
    if fields.system is not None:
        writer.system(fields.system)
    for index, message in enumerate(fields.messages):
        writer.message(message.role, message.content, f"messages[{index}]")
    tools = [_tool(fields, index) for index in range(len(fields.tools or ()))] or None
    if fields.cache_control:
        writer.marks.append(len(writer.messages) - 1)
    if fields.system and any(tool.cache_control for tool in fields.tools or ()):
        # Templates put tools and system text together: they end at one place.
        writer.marks.append(0)
    last = writer.messages[-1]
    continued = last["role"] == "assistant"
    if continued and last.get("tool_calls"):
        raise invalid(
            f"messages[{len(fields.messages) - 1}]",
            "the last message calls tools, expected a message with their tool_result blocks",
        )
    config = fields.output_config.format if fields.output_config else None
    answer = fields.output_format or config
    return Turn(
        messages=writer.messages,
        tools=tools,
        tool_choice=_choice(fields),
        parallel=not (fields.tool_choice and fields.tool_choice.disable_parallel_tool_use),
        reasoning=_reasoning(fields),
        generation_prompt=not continued,
        continued=continued,
        schema=answer.json_schema if answer else None,
        schema_param="output_format.schema"
        if fields.output_format
        else "output_config.format.schema",
        marks=tuple(mark for mark in writer.marks if mark < len(writer.messages)),
    )


def _reasoning(fields: PromptRequest) -> ReasoningRequest | None:
    if fields.thinking is None:
        return None
    return ReasoningRequest(enabled=fields.thinking.type != "disabled")


def stops_of(fields: MessagesRequest) -> tuple[str, ...]:
    """The stop strings."""
    return tuple(fields.stop_sequences or ())


class _Conversation:
    """Messages in the shape of chat completions, and after which of them a marker stood."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.marks: list[int] = []

    def system(self, content: str | list[dict[str, Any]]) -> None:
        parts = self._texts(content, "system")
        if parts:
            self.messages.append({"role": "system", "content": parts})
            self._mark(content)

    def message(self, role: str, content: str | list[dict[str, Any]], path: str) -> None:
        if isinstance(content, str):
            self.messages.append({"role": role, "content": content})
            return
        if role == "assistant":
            self._assistant(content, path)
        elif role == "system":
            self.messages.append(
                {"role": "system", "content": self._texts(content, f"{path}.content")}
            )
            self._mark(content)
        else:
            self._user(content, path)

    def _user(self, blocks: list[dict[str, Any]], path: str) -> None:
        texts: list[dict[str, Any]] = []

        def close() -> None:
            if texts:
                self.messages.append({"role": "user", "content": _plain(texts)})
                texts.clear()

        for index, block in enumerate(blocks):
            where = f"{path}.content[{index}]"
            match block.get("type"):
                case "text":
                    texts.append({"type": "text", "text": _field(block, "text", str, where)})
                case "tool_result":
                    close()
                    given = block.get("content")
                    result = self._texts("" if given is None else given, f"{where}.content")
                    self.messages.append(
                        {
                            "role": "tool",
                            "tool_call_id": _field(block, "tool_use_id", str, where),
                            "content": result,
                        }
                    )
                case kind:
                    raise _unknown(kind, where, "'text' or 'tool_result'")
            if block.get("cache_control"):
                close()
                self.marks.append(len(self.messages) - 1)
        close()

    def _assistant(self, blocks: list[dict[str, Any]], path: str) -> None:
        texts: list[dict[str, Any]] = []
        thoughts: list[str] = []
        calls: list[dict[str, Any]] = []
        for index, block in enumerate(blocks):
            where = f"{path}.content[{index}]"
            match block.get("type"):
                case "text":
                    texts.append({"type": "text", "text": _field(block, "text", str, where)})
                case "thinking":
                    thoughts.append(_field(block, "thinking", str, where))
                case "redacted_thinking":
                    continue
                case "tool_use":
                    arguments = _field(block, "input", dict, where)
                    calls.append(
                        {
                            "id": _field(block, "id", str, where),
                            "type": "function",
                            "function": {
                                "name": _field(block, "name", str, where),
                                "arguments": json.dumps(arguments, ensure_ascii=False),
                            },
                        }
                    )
                case kind:
                    raise _unknown(kind, where, "'text', 'thinking' or 'tool_use'")
        message: dict[str, Any] = {"role": "assistant", "content": _plain(texts)}
        if thoughts:
            message["reasoning_content"] = "\n".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        self.messages.append(message)
        self._mark(blocks)

    def _mark(self, content: str | list[dict[str, Any]]) -> None:
        if isinstance(content, list) and any(block.get("cache_control") for block in content):
            self.marks.append(len(self.messages) - 1)

    @staticmethod
    def _texts(content: Any, path: str) -> Any:
        """A string, or the text parts of a list of blocks."""
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise invalid(path, f"{path} is {describe(content)}, expected a string or a list")
        parts = []
        for index, block in enumerate(content):
            where = f"{path}[{index}]"
            if not isinstance(block, dict):
                raise invalid(where, f"{where} is {describe(block)}, expected an object")
            if block.get("type") != "text":
                raise _unknown(block.get("type"), where, "'text'")
            parts.append({"type": "text", "text": _field(block, "text", str, where)})
        return _plain(parts)


def _plain(parts: list[dict[str, Any]]) -> Any:
    """One part alone is a string, as other dialects send it."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 else list(parts)


def _field(block: dict[str, Any], name: str, kind: type, where: str) -> Any:
    value = block.get(name)
    if not isinstance(value, kind):
        path = f"{where}.{name}"
        if name not in block:
            raise invalid(path, f"{path} is missing", code="missing_required_parameter")
        expected = "a string" if kind is str else "an object"
        raise invalid(path, f"{path} is {describe(value)}, expected {expected}")
    return value


def _unknown(kind: object, where: str, expected: str) -> Exception:
    path = f"{where}.type"
    if kind is None:
        return invalid(path, f"{path} is missing", code="missing_required_parameter")
    return invalid(path, f"{path} is {describe(kind)}, expected {expected}; this model takes text")


def _tool(fields: PromptRequest, index: int) -> dict[str, Any]:
    tool = (fields.tools or [])[index]
    if tool.input_schema is None:
        if tool.type not in (None, "custom"):
            raise invalid(
                f"tools[{index}].type",
                f"tools[{index}].type is {describe(tool.type)}, expected 'custom':"
                " tools that a server runs are not supported",
            )
        path = f"tools[{index}].input_schema"
        raise invalid(path, f"{path} is missing", code="missing_required_parameter")
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema
    return {"type": "function", "function": function}


def _choice(fields: PromptRequest) -> object:
    choice = fields.tool_choice
    if choice is None or choice.type in ("auto", "none"):
        return None if choice is None else choice.type
    if not fields.tools:
        raise invalid("tool_choice", f'tool_choice is "{choice.type}", but there are no tools')
    if choice.type == "any":
        return "required"
    if choice.name not in {tool.name for tool in fields.tools}:
        raise invalid(
            "tool_choice.name",
            f"tool_choice.name is {describe(choice.name)}, which is not among tools",
        )
    return {"type": "function", "function": {"name": choice.name}}
