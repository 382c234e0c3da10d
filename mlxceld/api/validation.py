"""From what pydantic finds wrong to one sentence: the field, its value, what was expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails

from mlxceld.api.body import describe
from mlxceld.api.errors import ApiError, invalid

M = TypeVar("M", bound=BaseModel)

HIDDEN = "~"
"""Begins the tags of unions, which are no part of a field's path."""

_PATH_LIMIT = 200


def _stop_at_first_error(schema: Any) -> None:
    """Have lists stop at their first wrong element: a hundred thousand errors take a second."""
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        for inner in schema.values():
            _stop_at_first_error(inner)
    elif isinstance(schema, list | tuple):
        for inner in schema:
            _stop_at_first_error(inner)


class RequestModel(BaseModel):
    """Base of request bodies: types as sent, never converted; unknown fields ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, protected_namespaces=())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _stop_at_first_error(schema)
        return schema


def validate(kind: type[M], body: dict[str, Any], *, at: str = "") -> M:
    """``body`` as a model; raises a 400 ApiError about the first field that is wrong.

    ``at`` is where it stands, if it is not the whole body.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False)[0], at) from None


def param_path(location: Sequence[int | str]) -> str:
    """``messages[0].content[1].type``."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith(HIDDEN):
            path += f".{part}" if path else part
    return path if len(path) <= _PATH_LIMIT else path[: _PATH_LIMIT - 1] + "…"


def _refusal(error: ErrorDetails, at: str) -> ApiError:
    param = param_path((at, *error["loc"]) if at else error["loc"])
    if error["type"] == "missing":
        return invalid(param, f"{param} is missing", code="missing_required_parameter")
    expected = _expectation(error)
    return invalid(param, f"{param} is {describe(error['input'])}, expected {expected}")


def _expectation(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    match error["type"]:
        case "string_too_short":
            return "text that is not empty"
        case "too_short":
            return f"at least {context['min_length']} element"
        case "too_long":
            return f"at most {context['max_length']} elements"
        case "int_type" | "int_from_float" | "int_parsing_size":
            return "a whole number"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "an object"
        case "bool_type":
            return "true or false"
        case kind if kind.endswith("_type"):
            return error["msg"].removeprefix("Input should be ").replace("a valid ", "a ")
    return error["msg"].removeprefix("Input should be ")
