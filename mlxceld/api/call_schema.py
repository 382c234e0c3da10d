"""The JSON schema that a forced call has to fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlxceld.models.fitting.tool_fields import without_nulls


def call_schema(
    tools: Sequence[Mapping[str, Any]], choice: object, allowed: frozenset[str] | None
) -> dict[str, Any]:
    """One call as ``{"name", "arguments"}`` of any tool that may be called, or of the named one."""
    named = choice["function"]["name"] if isinstance(choice, dict) else None
    definitions: dict[str, Any] = {}
    forms = []
    for number, tool in enumerate(tools):
        function = without_nulls(tool)["function"]
        if named not in (None, function["name"]):
            continue
        if allowed is not None and function["name"] not in allowed:
            continue
        key = f"tool{number}"
        parameters = {"type": "object", **(function.get("parameters") or {})}
        parameters.setdefault("additionalProperties", False)
        definitions[key] = _moved(parameters, f"#/$defs/{key}")
        forms.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": function["name"]},
                    "arguments": {"$ref": f"#/$defs/{key}"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    body = forms[0] if len(forms) == 1 else {"anyOf": forms}
    return {**body, "$defs": definitions}


def _moved(schema: Any, root: str) -> Any:
    """A schema whose references hold when it stands at ``root`` of another one."""
    if isinstance(schema, list):
        return [_moved(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, root) for key, value in schema.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = root + reference[1:]
    return moved
