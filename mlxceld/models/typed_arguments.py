"""Arguments that a model writes without their types, typed by the tool's schema.

Some forms of calls give each argument as bare text: ``5`` may be a number or a string. What it is
follows from the parameter's JSON schema. A string is never read as anything else; where several
types fit, the most specific that the text can be is taken; text that fits none stays text.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mlxceld.models.strict_json import strict_json

_DEPTH = 16
"""How far references and alternatives are followed; schemas may be circular."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,300}(?:\.0+)?")
_LITERAL_LIMIT = 10_000
"""Characters of a Python literal that is read; the parser's time grows with its depth."""

_ALTERNATIVES = ("anyOf", "oneOf", "allOf")


def typed_arguments(
    arguments: Mapping[str, str], name: str, tools: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The arguments of a call of the function ``name``, each as its parameter's schema has it."""
    parameters = parameters_of(name, tools)
    known = properties_of(parameters)
    rest = parameters.get("additionalProperties")
    return {
        key: typed(text, known.get(key, rest if isinstance(rest, Mapping) else {}), parameters)
        for key, text in arguments.items()
    }


def parameters_of(name: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The schema of a function's parameters; empty for a function that is not among the tools."""
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and function.get("name") == name:
            parameters = function.get("parameters")
            return parameters if isinstance(parameters, Mapping) else {}
    return {}


def properties_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of an object's schema, with those of its alternatives and references."""
    found: dict[str, Any] = {}
    for schema in _flattened(parameters, parameters, _DEPTH):
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            found = {**properties, **found}
    return found


def typed(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """One argument's value; ``root`` is the schema that references in ``schema`` point into."""
    parts = _flattened(schema, root, _DEPTH)
    types = {kind for part in parts for kind in _types(part)}
    chosen = [value for part in parts for value in _choices(part)]
    if chosen and text in chosen:
        return text
    stripped = text.strip()
    if types == {"string"}:
        return text
    if not types:
        # Nothing is said: only what cannot be meant as text is read.
        value = _json(stripped)
        return value if isinstance(value, dict | list) else text
    if "null" in types and stripped in ("null", "None"):
        return None
    if "integer" in types and _INTEGER.fullmatch(stripped):
        return int(stripped.partition(".")[0])
    if "number" in types and (number := _number(stripped)) is not None:
        return number
    if "boolean" in types and stripped.lower() in ("true", "false"):
        return stripped.lower() == "true"
    if "object" in types or "array" in types:
        value = _json(stripped)
        if value is None:
            value = _literal(stripped)
        if isinstance(value, dict) and "object" in types:
            return value
        if isinstance(value, list) and "array" in types:
            return value
    return text


def unquoted(text: str) -> str:
    """A text without the quotes of JSON, if it is a JSON string."""
    value = _json(text.strip()) if text.strip().startswith('"') else None
    return value if isinstance(value, str) else text


def _flattened(schema: Any, root: Mapping[str, Any], depth: int) -> list[Mapping[str, Any]]:
    """A schema and all that it refers to or offers as alternatives."""
    if not isinstance(schema, Mapping) or not depth:
        return []
    found = [schema]
    reference = schema.get("$ref")
    if isinstance(reference, str):
        found += _flattened(_resolved(reference, root), root, depth - 1)
    for key in _ALTERNATIVES:
        parts = schema.get(key)
        for part in parts if isinstance(parts, list) else ():
            found += _flattened(part, root, depth - 1)
            if len(found) > 1000:
                break
    return found


def _resolved(reference: str, root: Mapping[str, Any]) -> Any:
    value: Any = root
    if not reference.startswith("#"):
        return None
    for step in filter(None, reference[1:].split("/")):
        key = step.replace("~1", "/").replace("~0", "~")
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _types(schema: Mapping[str, Any]) -> set[str]:
    given = schema.get("type")
    kinds = {given} if isinstance(given, str) else set()
    if isinstance(given, list):
        kinds = {kind for kind in given if isinstance(kind, str)}
    if schema.get("nullable") is True:
        kinds.add("null")
    if not kinds:
        kinds = {_type_of(value) for value in _choices(schema)}
    return kinds


def _choices(schema: Mapping[str, Any]) -> list[Any]:
    choices = schema.get("enum")
    found = list(choices) if isinstance(choices, list) else []
    return [*found, schema["const"]] if "const" in schema else found


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _number(text: str) -> float | int | None:
    if _INTEGER.fullmatch(text):
        return int(text.partition(".")[0])
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _json(text: str) -> Any:
    try:
        return strict_json(text)
    except ValueError:
        return None


def _literal(text: str) -> Any:
    """A list or object in Python's notation, as some models write it, if JSON can hold it."""
    if len(text) > _LITERAL_LIMIT or not text.startswith(("{", "[")):
        return None
    try:
        value = ast.literal_eval(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return value
