"""Bounds of a JSON schema, looked at before any of it is compiled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

SIZE_LIMIT = 100_000
"""Values in a schema. An object of 5,000 required properties has 20,000."""

DEPTH_LIMIT = 64

OPTIONAL_LIMIT = 480
"""Properties of one object that may be left out: each is a choice at every one before it, and
llguidance follows four threads for each choice, 2,000 in all."""

BRANCH_LIMIT = 2_000
"""Ways through alternatives within alternatives, all of which may have to be followed at once."""

_ALTERNATIVES = ("anyOf", "oneOf")

_NOT_SCHEMAS = frozenset({"const", "enum", "default", "examples", "required"})


class SchemaBoundsError(ValueError):
    """A schema past one of the bounds; the text says which, and where."""


def check_bounds(schema: Mapping[str, Any]) -> None:
    """Raise SchemaBoundsError for a schema that would cost too much to compile or to follow."""
    count = 0
    level: list[tuple[str, Any]] = [("", schema)]
    for _ in range(DEPTH_LIMIT + 1):
        following: list[tuple[str, Any]] = []
        for path, value in level:
            count += 1
            if count > SIZE_LIMIT:
                raise SchemaBoundsError(f"the schema has more than {SIZE_LIMIT} values")
            if isinstance(value, Mapping):
                _check_object(path, value)
            following.extend(_children(path, value))
        if not following:
            _check_branches(schema)
            return
        level = following
    raise SchemaBoundsError(f"the schema is nested deeper than {DEPTH_LIMIT} levels")


def _children(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield f"{path}.{key}"[-120:], inner
    elif isinstance(value, list):
        for inner in value:
            yield path, inner


def _check_object(path: str, schema: Mapping[str, Any]) -> None:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, Mapping):
        return
    needed = (
        {name for name in required or () if isinstance(name, str)}
        if (isinstance(required, list))
        else set()
    )
    optional = len(properties.keys() - needed)
    if optional > OPTIONAL_LIMIT:
        where = path.lstrip(".") or "the schema"
        raise SchemaBoundsError(
            f"{where} has {optional} optional properties, expected at most {OPTIONAL_LIMIT};"
            " name those that always come in 'required'"
        )


def _check_branches(schema: Any) -> None:
    if (ways := _branches(schema)) > BRANCH_LIMIT:
        raise SchemaBoundsError(
            f"the schema's alternatives within alternatives are {ways} ways,"
            f" expected at most {BRANCH_LIMIT}"
        )


def _branches(schema: Any) -> int:
    """How many ways lead through a schema's own text; references are not followed."""
    if isinstance(schema, list):
        return max(map(_branches, schema), default=1)
    if not isinstance(schema, Mapping):
        return 1
    ways = 1
    for key, value in schema.items():
        if key in _NOT_SCHEMAS:
            continue
        if key in _ALTERNATIVES and isinstance(value, list):
            ways = max(ways, sum(map(_branches, value)))
        else:
            ways = max(ways, _branches(value))
    return ways
