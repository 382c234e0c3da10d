"""OpenAPI documents, made of the models that validate and the types that are answered with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

OPENAPI = "3.1.0"

_REFERENCE = "#/components/schemas/{model}"
_PATH_PARAMETER = re.compile(r"{(\w+)(?::[^}]*)?}")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query; ``schema`` is its JSON schema."""

    name: str
    schema: Mapping[str, Any]
    description: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """One route: what it takes and what it answers with.

    ``path`` is the router's own. ``body`` and ``answer`` are types that pydantic makes a schema
    of; None is no body, or an answer that is any JSON. ``media`` are the types of a good answer
    with ``status``, ``errors`` the statuses of the others. An ``open`` one needs no token.
    """

    method: str
    path: str
    summary: str
    body: Any = None
    answer: Any = None
    status: int = 200
    media: Sequence[str] = ("application/json",)
    errors: Sequence[int] = ()
    query: Sequence[Parameter] = ()
    open: bool = False
    also: Mapping[int, str] = field(default_factory=dict)


def document(
    title: str,
    version: str,
    description: str,
    operations: Iterable[Operation],
    *,
    error: Any,
    reasons: Mapping[int, str],
) -> dict[str, Any]:
    """The whole document. ``error`` is the type of every refusal, ``reasons`` what each means."""
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    refusal = {"application/json": {"schema": _schema(error, schemas)}}
    for operation in operations:
        path = _PATH_PARAMETER.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _operation(
            operation, schemas, refusal, reasons
        )
    return {
        "openapi": OPENAPI,
        "info": {"title": title, "version": version, "description": description},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}],
    }


def _operation(
    operation: Operation,
    schemas: dict[str, Any],
    refusal: Mapping[str, Any],
    reasons: Mapping[int, str],
) -> dict[str, Any]:
    answer: Mapping[str, Any] = {}
    if operation.answer is not None:
        answer = _schema(operation.answer, schemas)
    responses: dict[str, Any] = {
        str(operation.status): {
            "description": "Done.",
            "content": {
                kind: {"schema": answer} if kind == "application/json" else {}
                for kind in operation.media
            },
        }
    }
    for status, text in operation.also.items():
        responses[str(status)] = {
            "description": text,
            "content": {"application/json": {"schema": {}}},
        }
    for status in sorted(operation.errors):
        responses[str(status)] = {"description": reasons[status], "content": refusal}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PATH_PARAMETER.findall(operation.path)
    ]
    parameters += [
        {
            "name": one.name,
            "in": "query",
            "required": False,
            "description": one.description,
            "schema": one.schema,
        }
        for one in operation.query
    ]
    told: dict[str, Any] = {
        "operationId": _name(operation),
        "summary": operation.summary,
        "responses": responses,
    }
    if parameters:
        told["parameters"] = parameters
    if operation.body is not None:
        told["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _schema(operation.body, schemas)}},
        }
    if operation.open:
        told["security"] = []
    return told


def _schema(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type; what it refers to is added to ``schemas``."""
    made = TypeAdapter(kind).json_schema(ref_template=_REFERENCE)
    schemas.update(made.pop("$defs", {}))
    name = made.get("title")
    if name is None or made.get("type") != "object":
        return made
    schemas[name] = made
    return {"$ref": _REFERENCE.format(model=name)}


def _name(operation: Operation) -> str:
    words = re.findall(r"\w+", _PATH_PARAMETER.sub(r"\1", operation.path))
    return "_".join([operation.method.lower(), *(word for word in words if word != "admin")])
