"""Calls in the item types of the tools: from what the model wrote, and back to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mlxceld.api.responses.content import string_of, wrong
from mlxceld.api.responses.tools import OfferedTool, shown_name

CALL_PREFIXES: Mapping[str, str] = {
    "function": "fc",
    "custom": "ctc",
    "local_shell": "lsh",
    "shell": "sh",
    "apply_patch": "apc",
    "tool_search": "tsc",
}
"""What the ids of items of each kind of call begin with."""

_NATIVE = {
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
    "tool_search_call": ("tool_search", "arguments"),
}

_ORDER = ("type", "path", "diff", "command", "commands")
"""What comes first in the arguments of such a call, whatever order a client's SDK keeps."""

_LOCAL_SHELL_ACTION: Mapping[str, Any] = {
    "type": "exec",
    "env": {},
    "timeout_ms": None,
    "user": None,
    "working_directory": None,
}
_SHELL_ACTION: Mapping[str, Any] = {"timeout_ms": None, "max_output_length": None}

CALLS = frozenset({"function_call", "custom_tool_call", *_NATIVE})
"""The items that are calls which the client runs."""


def call_fields(tool: OfferedTool, arguments: str) -> dict[str, Any] | None:
    """The fields of the item of a call that say what is called and with what.

    None where the arguments are not what the tool takes.
    """
    try:
        given = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        given = None
    match tool.kind:
        case "custom":
            fields: dict[str, Any] = {"name": tool.name, "input": _input(given, arguments)}
            return fields if tool.namespace is None else {**fields, "namespace": tool.namespace}
        case "local_shell":
            action = _action(given, "command")
            return action and {"action": {**_LOCAL_SHELL_ACTION, **action}}
        case "shell":
            action = _action(given, "commands")
            return action and {
                "action": {**_SHELL_ACTION, **action},
                "environment": tool.environment,
            }
        case "apply_patch":
            return {"operation": given} if _is_operation(given) else None
        case "tool_search":
            if not isinstance(given, dict):
                return None
            return {"execution": "client", "arguments": given}
    return None


def call_message(item: dict[str, Any], where: str) -> dict[str, Any]:
    """A call item as a tool call in the shape of chat completions; raises a 400 ApiError."""
    kind = item["type"]
    match kind:
        case "function_call":
            name = name_shown(item, where)
            arguments = item.get("arguments")
            if arguments is None:
                arguments = "{}"
            elif isinstance(arguments, dict):
                arguments = _written(arguments)
            elif not isinstance(arguments, str):
                raise wrong(item, "arguments", where, "JSON text")
        case "custom_tool_call":
            name = name_shown(item, where)
            text = "" if item.get("input") is None else string_of(item, "input", where)
            arguments = _written({"input": text})
        case _:
            name, field = _NATIVE[kind]
            given = item.get(field)
            if isinstance(given, str):
                arguments = given
            elif isinstance(given, dict):
                arguments = _written(_as_called(kind, given))
            else:
                raise wrong(item, field, where, "an object")
    call_id = item.get("call_id") if item.get("call_id") is not None else item.get("id")
    if not isinstance(call_id, str):
        raise wrong(item, "call_id", where, "a string")
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def name_shown(item: dict[str, Any], where: str) -> str:
    """The name by which the model knows what an item names, perhaps in a namespace."""
    namespace = None if item.get("namespace") is None else string_of(item, "namespace", where)
    return shown_name(namespace, string_of(item, "name", where))


def _as_called(kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments without what the item has besides, in one order."""
    if kind == "tool_search_call":
        return given
    left_out = "type" if kind == "local_shell_call" else ""
    names = [name for name in _ORDER if name in given]
    names += sorted(name for name in given if name not in _ORDER)
    return {
        name: given[name]
        for name in names
        if name != left_out and given[name] is not None and given[name] != {}
    }


def _input(given: Any, arguments: str) -> str:
    """The text for a custom tool, however the model has wrapped it."""
    if isinstance(given, str):
        return given
    if isinstance(given, dict):
        if isinstance(given.get("input"), str):
            text: str = given["input"]
            return text
        texts = [value for value in given.values() if isinstance(value, str)]
        if len(texts) == len(given) == 1:
            return texts[0]
    return arguments


def _is_operation(given: Any) -> bool:
    """Whether arguments say what to do with which file, and with what."""
    if not isinstance(given, dict) or not isinstance(given.get("path"), str):
        return False
    kind = given.get("type")
    return kind == "delete_file" or (
        kind in ("create_file", "update_file") and isinstance(given.get("diff"), str)
    )


def _action(given: Any, name: str) -> dict[str, Any] | None:
    """Arguments of a shell whose commands are a list of strings; one string is a script."""
    if not isinstance(given, dict):
        return None
    commands = given.get(name)
    if isinstance(commands, str):
        commands = ["bash", "-lc", commands] if name == "command" else [commands]
    if not isinstance(commands, list) or not all(isinstance(one, str) for one in commands):
        return None
    return {**given, name: commands}


def _written(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)
