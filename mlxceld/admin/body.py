"""The JSON object of a mutation, as a model, or an error about the first field that is wrong."""

from __future__ import annotations

import difflib
import json
from typing import NoReturn, TypeVar

from aiohttp import web
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mlxceld.admin.errors import AdminError
from mlxceld.admin.schemas import AdminBody

BODY_LIMIT = 64 * 1024
"""The largest request body, in bytes; a prompt to warm may have :data:`WARM_LIMIT`."""

WARM_LIMIT = 32 * 2**20

M = TypeVar("M", bound=AdminBody)


async def read_body(request: web.Request, kind: type[M]) -> M:
    """The request's JSON object; no body at all reads as an object without fields."""
    raw = await request.read()
    value: object = {}
    if raw:
        try:
            value = json.loads(raw, parse_constant=_no_constant)
        except RecursionError:
            raise AdminError(400, "the body is nested too deeply") from None
        except UnicodeDecodeError:
            raise AdminError(400, "the body is not UTF-8") from None
        except ValueError as error:
            raise AdminError(400, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise AdminError(400, f"the body is a JSON {_kind(value)}, expected an object")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False)
        # What is unknown is told first: it is often what another field was meant to be.
        found.sort(key=lambda item: item["type"] != "extra_forbidden")
        _refuse(kind, found[0])
    except RecursionError:
        raise AdminError(400, "the body is nested too deeply") from None


def _refuse(kind: type[AdminBody], error: ErrorDetails) -> NoReturn:
    name = ".".join(str(part) for part in error["loc"])
    known = sorted(kind.model_fields)
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        fields = ", ".join(known) or "none"
        raise AdminError(400, f"unknown field {name!r}; the fields are: {fields}{hint}", field=name)
    expected = _expectation(error)
    if error["type"] == "missing":
        raise AdminError(
            400, f"{name} is missing, expected {expected}", field=name, expected=expected
        )
    shown = json.dumps(error["input"], default=str)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    raise AdminError(400, f"{name} is {shown}, expected {expected}", field=name, expected=expected)


def _expectation(error: ErrorDetails) -> str:
    limits = error.get("ctx", {})
    match error["type"]:
        case "missing":
            return "a value"
        case "bool_type":
            return "true or false"
        case "int_type" | "int_from_float" | "int_parsing_size":
            return "a whole number from 0"
        case "float_type" | "finite_number":
            return "a number of seconds from 0"
        case "greater_than_equal":
            return f"a number from {limits['ge']}"
        case "less_than_equal":
            return f"a number from 0 to {limits['le']}"
        case "string_type" | "string_too_short":
            return "a string that is not empty"
        case "too_short":
            return "a list that is not empty"
        case "literal_error":
            return f"one of {limits['expected']}"
    return error["msg"].removeprefix("Input should be ").replace("a valid ", "a ")


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return names[type(value)]
