"""From Anthropic's messages, blocks and tools to the common form of a turn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mlxceld.api.anthropic.blocks import string, text_of
from mlxceld.api.anthropic.schemas import Message, MessagesRequest, PromptRequest
from mlxceld.api.anthropic.tools import ToolSet
from mlxceld.api.body import describe
from mlxceld.api.conversation import Conversation
from mlxceld.api.errors import invalid
from mlxceld.api.notes import Notes
from mlxceld.models.reasoning import ReasoningRequest


def conversation_of(fields: PromptRequest, notes: Notes) -> Conversation:
    """The request as a turn; raises a 400 ApiError that names the block at fault.

    What it carries and cannot be honoured goes to ``notes``.
    """
    tools = ToolSet(fields.tools, notes)
    writer = _Conversation(tools, notes)
    if fields.system is not None:
        writer.system(fields.system)
    last_user = max(
        (index for index, one in enumerate(fields.messages) if one.role == "user"), default=-1
    )
    for index, message in enumerate(fields.messages):
        writer.message(message, f"messages[{index}]", cleared=index < last_user)
    if not writer.messages:
        raise invalid(
            "messages[0].content", "messages[0].content is empty, as are all others; expected text"
        )
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
    return Conversation(
        messages=writer.messages,
        tools=tools.functions or None,
        tool_choice=tools.choice(fields.tool_choice),
        parallel=not (fields.tool_choice and fields.tool_choice.disable_parallel_tool_use),
        reasoning=_reasoning(fields, writer.effort),
        generation_prompt=not continued,
        continued=continued,
        schema=answer.json_schema if answer else None,
        schema_param="output_format.schema"
        if fields.output_format
        else "output_config.format.schema",
        marks=tuple(mark for mark in writer.marks if 0 <= mark < len(writer.messages)),
    )


def _reasoning(fields: PromptRequest, effort_of_turn: str | None) -> ReasoningRequest | None:
    thinking = fields.thinking
    effort = effort_of_turn or (fields.output_config.effort if fields.output_config else None)
    if thinking is None:
        return ReasoningRequest(effort) if effort else None
    return ReasoningRequest(effort, thinking.type != "disabled", thinking.budget_tokens)


def stops_of(fields: MessagesRequest) -> tuple[str, ...]:
    """The stop strings."""
    return tuple(fields.stop_sequences or ())


class _Conversation:
    """Messages in the shape of chat completions, and after which of them a marker stood.

    ``effort`` is what a system message set for the turn that is now answered.
    """

    def __init__(self, tools: ToolSet, notes: Notes) -> None:
        self.messages: list[dict[str, Any]] = []
        self.marks: list[int] = []
        self.effort: str | None = None
        self._tools = tools
        self._notes = notes

    def system(self, content: str | list[dict[str, Any]]) -> None:
        """The request's own system text, if there is any."""
        parts = self._texts(content, "system")
        if parts:
            self.messages.append({"role": "system", "content": parts})
            self._mark(content)

    def message(self, message: Message, path: str, *, cleared: bool) -> None:
        """One message; ``cleared`` says that a later one is the user's."""
        content = message.content
        if message.role == "system":
            self._late_system(message, path, cleared=cleared)
            return
        if content is None:
            raise invalid(
                f"{path}.content",
                f"{path}.content is missing",
                code="missing_required_parameter",
            )
        if message.role == "assistant":
            self._assistant(content, path)
            return
        if isinstance(content, str):
            self.effort = None
            self.messages.append({"role": "user", "content": content})
            return
        if not content:
            # Nothing in its place would make an answer of the assistant the last message.
            raise invalid(
                f"{path}.content", f"{path}.content is an empty list, expected content blocks"
            )
        self._user(content, path)

    def _late_system(self, message: Message, path: str, *, cleared: bool) -> None:
        if message.output_config and message.output_config.effort:
            self.effort = message.output_config.effort
        content = message.content or ""
        if isinstance(content, list):
            kept = []
            for index, block in enumerate(content):
                if block.get("type") in ("tool_addition", "tool_removal"):
                    self._tools.change(block, f"{path}.content[{index}]")
                else:
                    kept.append(block)
            content = kept
        text = self._texts(content, f"{path}.content")
        if text and not (cleared and message.clear_at == "next_user_message"):
            self.messages.append({"role": "system", "content": text})
            self._mark(content)

    def _user(self, blocks: list[dict[str, Any]], path: str) -> None:
        texts: list[dict[str, Any]] = []
        before = len(self.messages)

        def close() -> None:
            if texts:
                self.messages.append({"role": "user", "content": _plain(texts)})
                texts.clear()

        for index, block in enumerate(blocks):
            where = f"{path}.content[{index}]"
            if block.get("type") == "tool_result":
                close()
                self.messages.append(self._tool_result(block, where))
            else:
                self.effort = None
                text = text_of(block, where, self._notes, expected="'text' or 'tool_result'")
                self._changes(block, where)
                if text is not None:
                    texts.append({"type": "text", "text": text})
            if block.get("cache_control"):
                close()
                self.marks.append(len(self.messages) - 1)
        close()
        if len(self.messages) == before:
            # All of it was skipped: the turn is still the user's.
            self.messages.append({"role": "user", "content": ""})

    def _tool_result(self, block: dict[str, Any], where: str) -> dict[str, Any]:
        given = block.get("content")
        given = "" if given is None else given
        result = self._texts(given, f"{where}.content", in_result=True)
        if block.get("is_error") is True and not result:
            result = "The tool failed."
        return {
            "role": "tool",
            "tool_call_id": string(block, "tool_use_id", where),
            "content": result,
        }

    def _assistant(self, content: str | list[dict[str, Any]], path: str) -> None:
        if isinstance(content, str):
            self.messages.append({"role": "assistant", "content": content})
            return
        texts: list[dict[str, Any]] = []
        thoughts: list[str] = []
        calls: list[dict[str, Any]] = []
        for index, block in enumerate(content):
            where = f"{path}.content[{index}]"
            match block.get("type"):
                case "thinking":
                    thoughts.append(string(block, "thinking", where))
                case "redacted_thinking":
                    continue
                case "tool_use":
                    calls.append(_call(block, where))
                case _:
                    expected = "'text', 'thinking' or 'tool_use'"
                    text = text_of(block, where, self._notes, expected=expected)
                    self._changes(block, where)
                    if text is not None:
                        texts.append({"type": "text", "text": text})
        message: dict[str, Any] = {"role": "assistant", "content": _plain(texts)}
        if thoughts:
            message["reasoning_content"] = "\n".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        self.messages.append(message)
        self._mark(content)

    def _changes(self, block: dict[str, Any], where: str) -> None:
        """What a summary says of the tools that were added or removed before it."""
        changes = block.get("tool_changes") if block.get("type") == "compaction" else None
        for number, change in enumerate(changes if isinstance(changes, list) else ()):
            path = f"{where}.tool_changes[{number}]"
            if not isinstance(change, dict):
                raise invalid(path, f"{path} is {describe(change)}, expected an object")
            self._tools.change(change, path)

    def _mark(self, content: str | list[dict[str, Any]]) -> None:
        if isinstance(content, list) and any(block.get("cache_control") for block in content):
            self.marks.append(len(self.messages) - 1)

    def _texts(self, content: Any, path: str, *, in_result: bool = False) -> Any:
        """A string, or the text parts of a list of blocks."""
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise invalid(path, f"{path} is {describe(content)}, expected a string or a list")
        parts = []
        for index, block in enumerate(content):
            where = f"{path}[{index}]"
            if isinstance(block, str):
                parts.append({"type": "text", "text": block})
                continue
            if not isinstance(block, dict):
                raise invalid(where, f"{where} is {describe(block)}, expected an object")
            text = text_of(block, where, self._notes, expected="'text'", in_result=in_result)
            if text is not None:
                parts.append({"type": "text", "text": text})
        return _plain(parts)


def _plain(parts: Sequence[dict[str, Any]]) -> Any:
    """One part alone is a string, as other dialects send it."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 else list(parts)


def _call(block: dict[str, Any], where: str) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict | str | None):
        path = f"{where}.input"
        raise invalid(path, f"{path} is {describe(arguments)}, expected an object")
    return {
        "id": string(block, "id", where),
        "type": "function",
        "function": {
            "name": string(block, "name", where),
            "arguments": arguments
            if isinstance(arguments, str)
            else json.dumps(arguments or {}, ensure_ascii=False),
        },
    }
