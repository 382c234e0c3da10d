"""The tools of a chat request and which of them may be called, in every form that OpenAI had."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxceld.api.body import describe
from mlxceld.api.errors import ApiError, invalid
from mlxceld.api.notes import Notes
from mlxceld.api.openai.schemas import (
    AllowedToolsChoice,
    ChatRequest,
    CustomTool,
    NamedFunction,
    NamedTool,
    Tool,
)
from mlxceld.models.tool_prompt import tool_as_rendered

INPUT = "input"
"""The one parameter of the function that stands for a custom tool."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request says of tools.

    ``choice`` is a conversation's ``tool_choice``, ``allowed`` the names that may be called, None
    for all. Calls of those in ``custom`` are answered with free text; ``legacy`` says that
    the request has ``functions``, whose calls are answered as ``function_call``.
    """

    tools: Sequence[Mapping[str, Any]]
    choice: object
    allowed: frozenset[str] | None
    custom: frozenset[str]
    legacy: bool


def tool_use(fields: ChatRequest, body: Mapping[str, Any], notes: Notes) -> ToolUse:
    """Read a request's tools; raises a 400 ApiError.

    ``body`` is what was sent: the order of a function's keys is part of the prompt.
    """
    if fields.functions is not None:
        return _legacy(fields, body)
    if fields.function_call not in (None, "none", "auto"):
        raise invalid("function_call", "function_call names a function, but there are no functions")
    tools: list[dict[str, Any]] = []
    names: list[str] = []
    custom: set[str] = set()
    sent = body.get("tools") or ()
    for index, tool in enumerate(fields.tools or ()):
        path = f"tools[{index}]"
        if tool.type == "function":
            if tool.function is None:
                raise _missing(f"{path}.function")
            tools.append(tool_as_rendered(sent[index]))
            names.append(tool.function.name)
            continue
        if tool.custom is None:
            raise _missing(f"{path}.custom")
        tools.append({"type": "function", "function": _as_function(tool.custom, path, notes)})
        names.append(tool.custom.name)
        custom.add(tool.custom.name)
    choice, allowed = _choice(fields, names)
    return ToolUse(tools, choice, allowed, frozenset(custom), legacy=False)


def _choice(fields: ChatRequest, names: Sequence[str]) -> tuple[object, frozenset[str] | None]:
    choice = fields.tool_choice
    if isinstance(choice, NamedTool):
        name = _named(choice, "tool_choice")
        if name not in names:
            raise invalid(
                "tool_choice",
                f"tool_choice names the function {describe(name)}, which is not among tools",
            )
        return {"type": "function", "function": {"name": name}}, None
    if isinstance(choice, AllowedToolsChoice):
        allowed = set()
        for index, tool in enumerate(choice.allowed_tools.tools):
            path = f"tool_choice.allowed_tools.tools[{index}]"
            name = _named(tool, path)
            if name not in names:
                raise invalid(path, f"{path} names {describe(name)}, which is not among tools")
            allowed.add(name)
        return choice.allowed_tools.mode, frozenset(allowed)
    if choice == "required" and not names:
        raise invalid("tool_choice", 'tool_choice is "required", but there are no tools')
    return choice, None


def _legacy(fields: ChatRequest, body: Mapping[str, Any]) -> ToolUse:
    if fields.tools:
        raise invalid("functions", "functions and tools are both given, expected one of them")
    tools = [
        tool_as_rendered({"type": "function", "function": function})
        for function in body["functions"]
    ]
    choice: object = fields.function_call
    if isinstance(choice, NamedFunction):
        if choice.name not in {function.name for function in fields.functions or ()}:
            raise invalid(
                "function_call",
                f"function_call names the function {describe(choice.name)}, which is not among"
                " functions",
            )
        choice = {"type": "function", "function": {"name": choice.name}}
    return ToolUse(tools, choice, None, frozenset(), legacy=True)


def _named(tool: NamedTool | Tool, path: str) -> str:
    given = tool.function if tool.type == "function" else tool.custom
    if given is None:
        raise _missing(f"{path}.{tool.type}")
    return given.name


def _as_function(tool: CustomTool, path: str, notes: Notes) -> dict[str, Any]:
    """A function with one text; a grammar is described to the model, not enforced."""
    about = [tool.description] if tool.description else []
    given = tool.format or {}
    if given.get("type") == "grammar":
        grammar = given.get("grammar") or given
        notes.skip(f"{path}.custom.format", "the grammar is told to the model, not enforced")
        about.append(f"The input has to fit this grammar:\n{json.dumps(grammar)}")
    return {
        "name": tool.name,
        "description": "\n\n".join(about),
        "parameters": {
            "type": "object",
            "properties": {INPUT: {"type": "string"}},
            "required": [INPUT],
        },
    }


def _missing(path: str) -> ApiError:
    return invalid(path, f"{path} is missing", code="missing_required_parameter")
