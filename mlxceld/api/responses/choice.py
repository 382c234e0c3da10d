"""Which of the offered tools an answer may or has to call."""

from __future__ import annotations

from typing import Any

from mlxceld.api.body import describe
from mlxceld.api.errors import ApiError, invalid
from mlxceld.api.responses.content import wrong
from mlxceld.api.responses.tools import OfferedTool, OfferedTools

_BY_NAME = ("function", "custom")
_BY_TYPE = ("local_shell", "shell", "apply_patch", "tool_search")


def chosen(
    choice: str | dict[str, Any] | None, offered: OfferedTools
) -> tuple[Any, frozenset[str] | None]:
    """The choice in the shape of chat completions, and the only names that may be called, if any.

    The model is told of all tools, whatever it may call now: the prompt stays the same.

    Raises a 400 ApiError for a choice of what is not among the tools, or is not run here.
    """
    if isinstance(choice, dict):
        if choice.get("type") == "allowed_tools":
            return _allowed(choice, offered)
        tool = _named(choice, offered, "tool_choice")
        return {"type": "function", "function": {"name": tool.shown_name}}, None
    if choice == "required" and not offered.tools:
        raise invalid("tool_choice", 'tool_choice is "required", but there are no tools to call')
    return choice, None


def _allowed(choice: dict[str, Any], offered: OfferedTools) -> tuple[str, frozenset[str]]:
    mode, allowed = choice.get("mode"), choice.get("tools")
    if mode not in ("auto", "required"):
        raise wrong(choice, "mode", "tool_choice", "'auto' or 'required'")
    if not isinstance(allowed, list) or not allowed:
        raise wrong(choice, "tools", "tool_choice", "a list of tools that is not empty")
    kept: list[OfferedTool] = []
    refusal: ApiError | None = None
    for index, one in enumerate(allowed):
        where = f"tool_choice.tools[{index}]"
        if not isinstance(one, dict):
            raise invalid(where, f"{where} is {describe(one)}, expected an object")
        try:
            kept.append(_named(one, offered, where))
        except ApiError as error:
            # A tool that is not run here may be allowed; it only cannot be the only one.
            if error.code is None:
                raise
            refusal = error
    if not kept and refusal is not None:
        raise refusal
    return mode, frozenset(tool.shown_name for tool in kept)


def _named(choice: dict[str, Any], offered: OfferedTools, where: str) -> OfferedTool:
    kind = choice.get("type")
    if kind is None:
        raise wrong(choice, "type", where, "the type of a tool")
    if kind in _BY_NAME:
        nested = choice.get("function")
        name = choice.get("name") or (nested.get("name") if isinstance(nested, dict) else None)
        if not isinstance(name, str):
            raise wrong(choice, "name", where, "a string")
        tool = offered.find(kind, name, choice.get("namespace"))
        if tool is None:
            raise invalid(
                where,
                f"{where} names the {kind} tool {describe(name)}, which is not among tools"
                if kind == "custom"
                else f"{where} names the function {describe(name)}, which is not among tools",
            )
        return tool
    tool = offered.find(kind, kind, None) if kind in _BY_TYPE else None
    if tool is None:
        raise invalid(
            where,
            f"{where} names a tool of type {describe(kind)}, which "
            + ("is not among tools" if kind in _BY_TYPE else "this server does not run"),
            code="unsupported_parameter",
        )
    return tool
