"""From the items of a response's input to messages in the shape of chat completions.

The same items give the same messages in every turn, whether a client sends them back or a stored
response is continued: what an SDK adds to an item plays no part.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mlxceld.api.body import describe
from mlxceld.api.errors import invalid
from mlxceld.api.notes import Notes
from mlxceld.api.responses.calls import CALLS, call_message, name_shown
from mlxceld.api.responses.content import content_of, string_of, wrong
from mlxceld.api.responses.schemas import (
    ConfigurationUpdate,
    ReasoningOptions,
    TextOptions,
)
from mlxceld.api.validation import validate

_ROLES = ("system", "developer", "user", "assistant")

_OUTPUTS = frozenset(
    {
        "function_call_output",
        "custom_tool_call_output",
        "local_shell_call_output",
        "shell_call_output",
        "apply_patch_call_output",
        "tool_search_output",
    }
)

_SERVER_CALLS = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "computer_call",
        "mcp_call",
        "program",
        "program_output",
    }
)
"""What a vendor's server has run: there is no tool for it here, so it is text of the history."""

_NO_TEXT = ("id", "type", "status", "container_id", "fingerprint", "call_id", "encrypted_content")

_SKIPPED = {
    "compaction": "a compacted history, which only the vendor's server can read",
    "compaction_summary": "a compacted history, which only the vendor's server can read",
    "context_compaction": "a compacted history, which only the vendor's server can read",
    "mcp_list_tools": "tools that the vendor's server would call",
    "mcp_approval_request": "about a tool that the vendor's server would call",
    "mcp_approval_response": "about a tool that the vendor's server would call",
}

_REFUSED = {
    "compaction_trigger": "histories are not compacted here",
    "computer_call_output": "screenshots cannot be shown to the model",
}

_CARRIED = "mlxceld.1."
"""Begins what stands in ``encrypted_content`` of our own reasoning: its text in base64."""


@dataclass(slots=True)
class Converted:
    """What a list of items says.

    ``tools`` are those that items bring, each with its path. ``reasoning`` and ``text`` are the
    last updates of the request's fields of these names.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[tuple[str, Any]] = field(default_factory=list)
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None


def convert(items: Sequence[dict[str, Any]], notes: Notes, *, known: int = 0) -> Converted:
    """What ``items`` say; the first ``known`` of them are those of a stored response.

    Raises a 400 ApiError that names the item at fault. What cannot be shown to the model is noted.
    """
    reader = _ItemReader(notes)
    for index, item in enumerate(items):
        where = f"input[{index - known}]" if index >= known else "previous_response_id"
        reader.read(item, where)
    return reader.converted


def kind_of(item: dict[str, Any]) -> str | None:
    """The type of an item, which may be left out of messages and references."""
    kind = item.get("type")
    if kind is None:
        kind = "message" if "role" in item else "item_reference" if "id" in item else None
    return kind if isinstance(kind, str) else None


def carried_reasoning(text: str) -> str:
    """Reasoning as a client that keeps no plain reasoning sends it back."""
    return _CARRIED + base64.b64encode(text.encode()).decode()


class _ItemReader:
    """Brings items together: what an assistant thought, said and called at once is one message."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._call_ids: dict[str, str] = {}
        self.converted = Converted()
        self._messages = self.converted.messages

    def read(self, item: dict[str, Any], where: str) -> None:
        """Add the next item."""
        kind = kind_of(item)
        match kind:
            case "message":
                self._message(item, where)
            case "reasoning":
                self._reasoning(item, where)
            case "additional_tools":
                self._tools(item, where)
            case "configuration_update":
                self._update(item, where)
            case _ if kind in CALLS:
                self._call(item, where)
            case _ if kind in _OUTPUTS:
                self._output(item, kind, where)
            case _ if kind in _SERVER_CALLS:
                self._assistant(fresh=("content", "tool_calls"))["content"] = _as_text(item)
            case _ if kind in _REFUSED:
                raise invalid(
                    f"{where}.type",
                    f"{where}.type is {describe(kind)}, which is not supported: {_REFUSED[kind]}",
                    code="unsupported_parameter",
                )
            case _ if kind in _SKIPPED:
                self._notes.skip(where, f"{kind}, {_SKIPPED[kind]}")
            case None:
                raise wrong(item, "type", where, "the type of an item")
            case _:
                self._unknown(item, kind, where)

    def _message(self, item: dict[str, Any], where: str) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise wrong(item, "role", where, "'system', 'developer', 'user' or 'assistant'")
        content = content_of(item.get("content"), f"{where}.content", self._notes)
        if role == "assistant":
            self._assistant(fresh=("content", "tool_calls"))["content"] = content
        else:
            self._messages.append({"role": role, "content": content})

    def _reasoning(self, item: dict[str, Any], where: str) -> None:
        text = _reasoning_text(item)
        if text:
            message = self._assistant(fresh=("reasoning_content", "content", "tool_calls"))
            message["reasoning_content"] = text
        elif item.get("encrypted_content"):
            self._notes.skip(where, "encrypted reasoning, which only the vendor's server can read")

    def _call(self, item: dict[str, Any], where: str) -> None:
        call = call_message(item, where)
        if isinstance(item.get("id"), str):
            # Outputs of a local shell name the item, others the call.
            self._call_ids[item["id"]] = call["id"]
        self._assistant(fresh=()).setdefault("tool_calls", []).append(call)

    def _output(self, item: dict[str, Any], kind: str, where: str) -> None:
        if kind == "tool_search_output":
            names = self._tools(item, where)
            content: Any = json.dumps({"tools": names}, ensure_ascii=False)
        elif kind == "shell_call_output":
            content = _shell_output(item.get("output"), f"{where}.output", self._notes)
        else:
            output = item.get("output")
            if isinstance(output, dict):
                output = json.dumps(output, ensure_ascii=False)
            content = content_of(output, f"{where}.output", self._notes, in_result=True)
        if kind == "apply_patch_call_output":
            content = content or ("failed" if item.get("status") == "failed" else "completed")
        call_id = item.get("call_id")
        if call_id is None and kind != "function_call_output":
            call_id = item.get("id")
        if call_id is None and isinstance(item.get("name"), str):
            # What a tool says unasked belongs to no call.
            name = name_shown(item, where)
            self._messages.append({"role": "user", "content": f"{name}:\n{_joined(content)}"})
            return
        if call_id is None and kind == "tool_search_output":
            return
        if not isinstance(call_id, str):
            raise wrong(item, "call_id", where, "a string")
        self._messages.append(
            {
                "role": "tool",
                "tool_call_id": self._call_ids.get(call_id, call_id),
                "content": content,
            }
        )

    def _tools(self, item: dict[str, Any], where: str) -> list[str]:
        """Take over the tools that an item brings; returns their names."""
        tools = item.get("tools")
        if not isinstance(tools, list):
            raise wrong(item, "tools", where, "a list of tools")
        names = []
        for index, tool in enumerate(tools):
            self.converted.tools.append((f"{where}.tools[{index}]", tool))
            if isinstance(tool, dict):
                names.append(str(tool.get("name") or tool.get("type")))
        return names

    def _update(self, item: dict[str, Any], where: str) -> None:
        """From here on the conversation is answered with other settings."""
        update = validate(ConfigurationUpdate, item, at=where)
        self.converted.reasoning = update.reasoning or self.converted.reasoning
        self.converted.text = update.text or self.converted.text

    def _unknown(self, item: dict[str, Any], kind: str | None, where: str) -> None:
        given = item.get("content") if item.get("content") is not None else item.get("text")
        text = _joined(given)
        if not text:
            self._notes.skip(where, f"an item of the unknown type {describe(kind)} without text")
            return
        role = item.get("role") if item.get("role") in _ROLES else "user"
        if role == "assistant":
            self._assistant(fresh=("content", "tool_calls"))["content"] = text
        else:
            self._messages.append({"role": role, "content": text})

    def _assistant(self, *, fresh: tuple[str, ...]) -> dict[str, Any]:
        """The assistant's message to add to; a new one if the last has any of ``fresh``."""
        last = self._messages[-1] if self._messages else None
        if last is None or last["role"] != "assistant" or any(last.get(name) for name in fresh):
            last = {"role": "assistant", "content": ""}
            self._messages.append(last)
        return last


def _reasoning_text(item: dict[str, Any]) -> str:
    """What was thought: in full, else as we carry it, else in summary."""
    if text := _joined(item.get("content")):
        return text
    carried = item.get("encrypted_content")
    if isinstance(carried, str) and carried.startswith(_CARRIED):
        try:
            return base64.b64decode(carried.removeprefix(_CARRIED), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return _joined(item.get("summary"))


def _joined(content: Any) -> str:
    """The texts in a content of any form, each on lines of its own."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return "\n".join(text for text in texts if isinstance(text, str))


def _as_text(item: dict[str, Any]) -> str:
    """A call that a vendor's server has run, with what came of it."""
    told = {
        name: value for name, value in item.items() if value is not None and name not in _NO_TEXT
    }
    if item["type"] == "image_generation_call":
        told.pop("result", None)
    return f"{item['type']}: {json.dumps(told, ensure_ascii=False, sort_keys=True)}"


def _shell_output(output: Any, path: str, notes: Notes) -> Any:
    """The output of a shell's commands, each with how it ended where that is not code 0."""
    if not isinstance(output, list) or not all(
        isinstance(one, dict) and "outcome" in one for one in output
    ):
        return content_of(output, path, notes, in_result=True)
    texts = []
    for index, one in enumerate(output):
        parts = [
            string_of(one, name, f"{path}[{index}]")
            for name in ("stdout", "stderr")
            if one.get(name)
        ]
        outcome = one["outcome"] if isinstance(one["outcome"], dict) else {}
        if outcome.get("type") == "timeout":
            parts.append("(timed out)")
        elif outcome.get("exit_code"):
            parts.append(f"(exit code {outcome['exit_code']})")
        texts.append("\n".join(parts))
    return "\n".join(texts)
