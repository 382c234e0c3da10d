"""The JSON object of a mutation, read field by field with an error for each that is wrong."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Collection
from typing import Any, NoReturn

from aiohttp import web

from mlxceld.admin.errors import AdminError

BODY_LIMIT = 64 * 1024
"""The largest request body, in bytes."""

_LARGEST = 2**63 - 1


class Body:
    """The fields of a request; reading one checks it. A missing or null field reads as None."""

    def __init__(self, values: dict[str, Any], known: Collection[str]) -> None:
        for name in values:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                fields = ", ".join(sorted(known)) or "none"
                raise AdminError(
                    400, f"unknown field {name!r}; the fields are: {fields}{hint}", field=name
                )
        self._values = values

    def integer(self, name: str, *, minimum: int = 0) -> int | None:
        """A whole number from ``minimum``."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self._refuse(name, value, f"a whole number from {minimum}")
        if not minimum <= value <= _LARGEST:
            self._refuse(name, value, f"a whole number from {minimum} to {_LARGEST}")
        return value

    def seconds(self, name: str) -> float | None:
        """A number of seconds from 0."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(name, value, "a number of seconds from 0")
        if not 0 <= value <= _LARGEST or math.isnan(value):
            self._refuse(name, value, f"a number of seconds from 0 to {_LARGEST}")
        return float(value)

    def boolean(self, name: str) -> bool | None:
        """true or false."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, bool):
            self._refuse(name, value, "true or false")
        return value

    def text(self, name: str) -> str | None:
        """A string that is not empty."""
        value = self._values.get(name)
        if value is not None and (not isinstance(value, str) or not value):
            self._refuse(name, value, "a string that is not empty")
        return value

    def value(self, name: str) -> Any:
        """Whatever was sent, for the caller to check."""
        return self._values.get(name)

    def choice(self, name: str, choices: Collection[str]) -> str | None:
        """One of a few strings."""
        value = self._values.get(name)
        if value is not None and (not isinstance(value, str) or value not in choices):
            self._refuse(name, value, "one of " + ", ".join(choices))
        return value

    @staticmethod
    def _refuse(name: str, value: object, expected: str) -> NoReturn:
        shown = json.dumps(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        raise AdminError(
            400, f"{name} is {shown}, expected {expected}", field=name, expected=expected
        )


async def read_body(request: web.Request, known: Collection[str]) -> Body:
    """The request's JSON object; no body at all reads as an object without fields."""
    raw = await request.read()
    if not raw:
        return Body({}, known)
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
    return Body(value, known)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return names[type(value)]
