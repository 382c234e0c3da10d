"""Anthropic's tools that the client runs, as functions; others are skipped with a note."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mlxceld.api.anthropic.schemas import Tool, ToolChoice
from mlxceld.api.body import describe
from mlxceld.api.errors import ApiError, invalid
from mlxceld.api.notes import Notes
from mlxceld.api.validation import validate

_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _command(*names: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(names), "description": "What to do."}


_VIEW_RANGE = {
    "type": "array",
    "items": {"type": "integer"},
    "description": "For view: the first and the last line, from 1; -1 is the end of the file.",
}
_FILE_FIELDS = {
    "path": _text("Path of the file or folder."),
    "file_text": _text("For create: the content of the new file."),
    "view_range": _VIEW_RANGE,
    "old_str": _text("For str_replace: the text to replace, which stands there once."),
}
_INSERT_LINE = {
    "type": "integer",
    "description": "For insert: the line after which to insert; 0 is the beginning.",
}


def _function(description: str, properties: Mapping[str, Any], required: Sequence[str]) -> Any:
    return {
        "description": description,
        "parameters": {
            "type": "object",
            "properties": dict(properties),
            "required": list(required),
        },
    }


_BASH = _function(
    "Run a command in a bash shell that stays open between calls.",
    {
        "command": _text("The command to run; needed unless restart is true."),
        "restart": {"type": "boolean", "description": "True restarts the shell."},
    },
    (),
)
_EDITOR = _function(
    "View, create and edit text files.",
    {
        "command": _command("view", "create", "str_replace", "insert"),
        **_FILE_FIELDS,
        "new_str": _text("For str_replace: the text to put in its place."),
        "insert_line": _INSERT_LINE,
        "insert_text": _text("For insert: the text to insert."),
    },
    ("command", "path"),
)
_EDITOR_WITH_UNDO = _function(
    "View, create and edit text files.",
    {
        "command": _command("view", "create", "str_replace", "insert", "undo_edit"),
        **_FILE_FIELDS,
        "new_str": _text("For str_replace and insert: the new text."),
        "insert_line": _INSERT_LINE,
    },
    ("command", "path"),
)
_MEMORY = _function(
    "Keep files of notes in the folder /memories, which outlives this conversation.",
    {
        "command": _command("view", "create", "str_replace", "insert", "delete", "rename"),
        **_FILE_FIELDS,
        "new_str": _text("For str_replace: the text to put in its place."),
        "insert_line": _INSERT_LINE,
        "insert_text": _text("For insert: the text to insert."),
        "old_path": _text("For rename: the path as it is."),
        "new_path": _text("For rename: the path as it is to be."),
    },
    ("command",),
)

_CLIENT_TOOLS: Mapping[str, Any] = {
    "bash_20241022": _BASH,
    "bash_20250124": _BASH,
    "text_editor_20241022": _EDITOR_WITH_UNDO,
    "text_editor_20250124": _EDITOR_WITH_UNDO,
    "text_editor_20250429": _EDITOR,
    "text_editor_20250728": _EDITOR,
    "memory_20250818": _MEMORY,
}
"""Tools that the client runs and whose arguments the vendor's model knows without being told."""

_SCREENS = re.compile(r"(computer|browser)(_toolset)?_\d+")


class ToolSet:
    """The tools of one request, as the messages change them; functions in their declared order."""

    def __init__(self, tools: Sequence[Tool] | None, notes: Notes) -> None:
        self._notes = notes
        self._functions: dict[str, dict[str, Any]] = {}
        self._removed: set[str] = set()
        self._skipped: set[str] = set()
        for index, tool in enumerate(tools or ()):
            self._declare(tool, f"tools[{index}]")

    @property
    def functions(self) -> list[dict[str, Any]]:
        """What the model may call, in the shape of chat completions."""
        return [
            {"type": "function", "function": function}
            for name, function in self._functions.items()
            if name not in self._removed
        ]

    def change(self, block: Mapping[str, Any], where: str) -> None:
        """Apply a ``tool_addition`` or ``tool_removal`` block; raises a 400 ApiError."""
        tool, path = block.get("tool"), f"{where}.tool"
        if not isinstance(tool, dict):
            raise invalid(path, f"{path} is {describe(tool)}, expected an object")
        kind, name = tool.get("type"), tool.get("name")
        if kind == "tool_definition" and block.get("type") == "tool_addition":
            definition = tool.get("definition")
            if not isinstance(definition, dict):
                at = f"{path}.definition"
                raise invalid(at, f"{at} is {describe(definition)}, expected an object")
            added = _validated(definition, f"{path}.definition")
            self._declare(added, f"{path}.definition")
            self._removed.discard(added.name or "")
        elif kind == "tool_reference" and isinstance(name, str):
            if block.get("type") == "tool_removal":
                self._removed.add(name)
            elif name in self._functions:
                self._removed.discard(name)
            elif name not in self._skipped:
                raise invalid(f"{path}.name", f"{path}.name is {describe(name)}, no tool's name")
        else:
            self._notes.skip(path, f"{kind} (an MCP server's tools are not offered)")

    def choice(self, choice: ToolChoice | None) -> object:
        """The choice in the shape of chat completions; raises a 400 ApiError."""
        if choice is None or choice.type in ("auto", "none"):
            return None if choice is None else choice.type
        names = [one["function"]["name"] for one in self.functions]
        if choice.type == "tool" and choice.name in self._skipped:
            raise invalid(
                "tool_choice.name",
                f"tool_choice.name is {describe(choice.name)}, a tool that is not offered here,"
                " expected a tool that the client runs",
            )
        if not names:
            raise invalid(
                "tool_choice", f'tool_choice is "{choice.type}", but there are no tools to call'
            )
        if choice.type == "any":
            return "required"
        if choice.name not in names:
            raise invalid(
                "tool_choice.name",
                f"tool_choice.name is {describe(choice.name)}, which is not among tools",
            )
        return {"type": "function", "function": {"name": choice.name}}

    def _declare(self, tool: Tool, path: str) -> None:
        known = _CLIENT_TOOLS.get(tool.type or "")
        if tool.type in (None, "custom") or tool.input_schema is not None:
            known = {"parameters": tool.input_schema or dict(_NO_ARGUMENTS)}
            if tool.description is not None:
                known = {"description": tool.description, **known}
        elif known is None:
            self._skip(tool, path)
            return
        if tool.name is None:
            at = f"{path}.name"
            raise invalid(at, f"{at} is missing", code="missing_required_parameter")
        self._functions[tool.name] = {"name": tool.name, **known}

    def _skip(self, tool: Tool, path: str) -> None:
        kind = tool.type or ""
        self._skipped.add(tool.name or kind)
        why = "answers with images" if _SCREENS.fullmatch(kind) else "is run by the vendor's server"
        self._notes.skip(path, f"{kind} ({why})")


def _validated(definition: dict[str, Any], path: str) -> Tool:
    try:
        return validate(Tool, definition)
    except ApiError as error:
        inner = error.param or ""
        message = str(error).replace(inner, f"{path}.{inner}", 1)
        raise invalid(f"{path}.{inner}", message, code=error.code) from None
