"""The query of a GET, read field by field with an error for each that is wrong."""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn

from aiohttp import web

from mlxceld.admin.errors import AdminError

_DIGITS = 15


class Query:
    """The parameters of a request; reading one checks it. A missing one reads as None.

    A parameter that is not ``known``, or given twice, is refused at once.
    """

    def __init__(self, request: web.Request, known: Collection[str]) -> None:
        for name in request.query:
            if name not in known:
                names = ", ".join(known)
                raise AdminError(
                    400, f"unknown parameter {name!r}; the parameters are: {names}", field=name
                )
            if len(request.query.getall(name)) > 1:
                raise AdminError(400, f"{name} is given twice, expected one value", field=name)
        self._values = request.query

    def integer(self, name: str, minimum: int, maximum: int) -> int | None:
        """A whole number within limits."""
        value = self._values.get(name)
        if value is None:
            return None
        plain = value.isascii() and value.isdigit() and len(value) <= _DIGITS
        if not plain or not minimum <= int(value) <= maximum:
            self._refuse(name, value, f"a whole number from {minimum} to {maximum}")
        return int(value)

    def text(self, name: str) -> str | None:
        """A string that is not empty."""
        value = self._values.get(name)
        if value == "":
            self._refuse(name, value, "a string that is not empty")
        return value

    def choice(self, name: str, choices: Collection[str]) -> str | None:
        """One of a few strings."""
        value = self._values.get(name)
        if value is not None and value not in choices:
            self._refuse(name, value, "one of " + ", ".join(choices))
        return value

    @staticmethod
    def _refuse(name: str, value: str, expected: str) -> NoReturn:
        shown = repr(value if len(value) <= 80 else value[:77] + "...")
        raise AdminError(
            400, f"{name} is {shown}, expected {expected}", field=name, expected=expected
        )
