"""Where a schema may stand in ``response_format``: each form is enforced."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from api_harness import error_of, open_api
from mlxceld.config import Settings
from mlxceld.engine.engine import Engine

CHAT = "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"sky": {"enum": ["clear", "grey"]}},
    "required": ["sky"],
    "additionalProperties": False,
}


@pytest.fixture
async def ask(
    engine: Engine, settings: Callable[..., Settings]
) -> AsyncIterator[Callable[[Any], Any]]:
    async with open_api(engine, settings()) as client:

        async def send(form: Any) -> Any:
            hello = [{"role": "user", "content": "Hi"}]
            body = {"messages": hello, "max_tokens": 60, "response_format": form, "seed": 1}
            return await client.post(CHAT, json=body)

        yield send


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object", "schema": SCHEMA},
        {"type": "json_schema", "schema": SCHEMA},
        {"type": "json_schema", "schema": SCHEMA, "json_schema": None},
        {"type": "json_schema", "json_schema": {"schema": SCHEMA}, "schema": {"type": "null"}},
    ],
)
async def test_a_schema_beside_the_type_is_enforced(
    ask: Callable[[Any], Any], form: dict[str, Any]
) -> None:
    response = await ask(form)
    assert response.status == 200, await response.text()
    message = (await response.json())["choices"][0]["message"]
    assert json.loads(message["content"])["sky"] in ("clear", "grey")


@pytest.mark.parametrize("more", [{}, {"schema": None}, {"schema": {}}])
async def test_without_a_schema_any_object_will_do(
    ask: Callable[[Any], Any], more: dict[str, Any]
) -> None:
    response = await ask({"type": "json_object", **more})
    message = (await response.json())["choices"][0]["message"]
    assert message["content"].startswith("{")


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "json_schema"}, "response_format.json_schema"),
        (
            {"type": "json_schema", "json_schema": {"name": "x"}},
            "response_format.json_schema.schema",
        ),
        ({"type": "json_object", "schema": {"not": {}}}, "response_format.schema"),
        ({"type": "json_object", "schema": [1]}, "response_format.schema"),
    ],
)
async def test_the_field_at_fault_is_named(
    ask: Callable[[Any], Any], form: dict[str, Any], param: str
) -> None:
    assert (await error_of(await ask(form), 400))["param"] == param
