"""Generated JSON schemas, eight answers at a time, beside answers that are free."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable
from typing import Any

import jsonschema
from aiohttp.test_utils import TestClient

from api_harness import open_api
from mlxceld.config import Settings
from mlxceld.engine.engine import Engine

COUNT = int(os.environ.get("STRUCTURED_OUTPUT_SCHEMAS", "24"))
"""How many schemas; a longer run takes more."""

AT_ONCE = 8
NAMES = ("name", "age", "tags", "kind", "when", "size", "ok", "place")


def schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """A schema that bounds the length of what fits it."""
    kinds = ["integer", "number", "string", "enum", "boolean", "null", "const"]
    if depth < 2:
        kinds += ["object", "array", "any"]
    kind = rng.choice(kinds) if depth else "object"
    low = rng.randint(-50, 50)
    match kind:
        case "integer" | "number":
            return {"type": kind, "minimum": low, "maximum": low + rng.randint(1, 200)}
        case "string":
            return rng.choice(
                [
                    {"type": "string", "maxLength": rng.randint(1, 14)},
                    {"type": "string", "pattern": "^[a-z]{1,6}$"},
                    {"type": "string", "format": "date"},
                ]
            )
        case "enum":
            return {"enum": rng.sample(["red", "green", "blue", 1, 2, None, True], 3)}
        case "boolean":
            return {"type": "boolean"}
        case "null":
            return {"type": ["string", "null"], "maxLength": 8}
        case "const":
            return {"const": rng.choice(["x", 3, False])}
        case "array":
            items = schema(rng, depth + 1)
            return {"type": "array", "items": items, "maxItems": rng.randint(1, 3)}
        case "any":
            return {"anyOf": [schema(rng, depth + 1), schema(rng, depth + 1)]}
    names = rng.sample(NAMES, rng.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: schema(rng, depth + 1) for name in names},
        "required": [name for name in names if not depth or rng.random() < 0.7],
        "additionalProperties": False,
    }


async def ask(client: TestClient[Any, Any], **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "Give an example."}], **fields}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status == 200, await response.text()
    choice: dict[str, Any] = (await response.json())["choices"][0]
    return choice


async def test_every_answer_fits_its_schema(
    engine: Engine, settings: Callable[..., Settings]
) -> None:
    places = asyncio.Semaphore(AT_ONCE)
    cut = []

    async with open_api(engine, settings()) as client:
        free = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
        alone = await ask(client, **free)

        async def one(number: int) -> None:
            wanted = schema(random.Random(number))
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": wanted}}
            async with places:
                choice = await ask(
                    client, temperature=1, seed=number, max_tokens=400, response_format=form
                )
            if choice["finish_reason"] != "stop":
                cut.append(number)
                return
            checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
            value = json.loads(choice["message"]["content"])
            jsonschema.validate(value, wanted, format_checker=checker)

        async def beside() -> None:
            assert await ask(client, **free) == alone

        others = [beside() for _ in range(max(2, COUNT // 20))]
        await asyncio.gather(*(one(number) for number in range(COUNT)), *others)
    assert len(cut) <= COUNT // 100, cut
