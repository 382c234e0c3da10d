"""Calls whose arguments are bare text between tags: Qwen Coder's, GLM's, MiniMax's and others'."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlxceld.models.typed_arguments import parameters_of, properties_of, typed_arguments

Tools = Sequence[Mapping[str, Any]]
Found = list[dict[str, Any]]

_FUNCTION = re.compile(r"<function=([^<>\s]+)\s*>?")
_NEXT_FUNCTION = re.compile(r"</function>\s*(?=<function=)")
_PARAMETER = re.compile(r"<parameter=([^<>\n]+?)\s*>")
_CLOSED = re.compile(r"</parameter>(?=\s*(?:<parameter=|</function>|\Z))")
_FUNCTION_END = re.compile(r"\s*(?:</function>\s*)?\Z")


def parse_qwen_coder(text: str, tools: Tools) -> Found:
    """``<function=NAME><parameter=KEY>VALUE</parameter>…</function>``, once or several times.

    Missing closing tags are put where the next tag, or the end, shows that they belong. Raises
    ValueError where there is no function.
    """
    return [_qwen_coder_call(part, tools) for part in _NEXT_FUNCTION.split(text)]


def _qwen_coder_call(text: str, tools: Tools) -> dict[str, Any]:
    head = _FUNCTION.search(text)
    if head is None:
        raise ValueError("there is no function")
    name = head[1]
    known = properties_of(parameters_of(name, tools))
    arguments: dict[str, str] = {}
    at = head.end()
    while opening := _PARAMETER.search(text, at):
        closing = _CLOSED.search(text, opening.end())
        ending = _FUNCTION_END.search(text, opening.end())
        end = closing.start() if closing else (ending.start() if ending else len(text))
        # A tag of another parameter within the value closes it, if there is one of that name.
        inner = _PARAMETER.search(text, opening.end(), end)
        if inner and inner[1] in known and text[inner.start() - 1] == "\n":
            end = inner.start()
            at = end
        else:
            at = closing.end() if closing else len(text)
        arguments[opening[1]] = _without_breaks(text[opening.end() : end])
    return {"name": name, "arguments": typed_arguments(arguments, name, tools)}


def _without_breaks(value: str) -> str:
    """A value without the line breaks that the form puts around it."""
    return value.removeprefix("\n").removesuffix("\n")


def retyped(parser: Callable[..., Any]) -> Callable[[str, Tools], Any]:
    """One of mlx-lm's parsers for bare text, with the typing done here.

    It is shown tools whose parameters are all strings, and so leaves the texts as they are.
    """

    def parse(text: str, tools: Tools) -> Any:
        found = parser(text, [_all_strings(tool) for tool in tools])
        if isinstance(found, list):
            return [_typed_call(call, tools) for call in found]
        return _typed_call(found, tools)

    return parse


def _typed_call(call: Any, tools: Tools) -> Any:
    if not isinstance(call, Mapping) or not isinstance(call.get("arguments"), Mapping):
        return call
    given, name = call["arguments"], call.get("name")
    # Some of them read a null whatever the schema says.
    texts = {
        key: "null" if value is None else value
        for key, value in given.items()
        if value is None or isinstance(value, str)
    }
    types = typed_arguments(texts, name if isinstance(name, str) else "", tools)
    return {**call, "arguments": {key: types.get(key, value) for key, value in given.items()}}


def _all_strings(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return dict(tool)
    parameters = function.get("parameters")
    names = properties_of(parameters) if isinstance(parameters, Mapping) else {}
    plain = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    return {**tool, "function": {**function, "parameters": plain}}
