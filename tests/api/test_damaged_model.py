"""A prompt that the model makes no numbers of: 500 with the reason, for that request alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from api_harness import error_of, open_api, parse_sse
from damaged_models import DAMAGED_TOKEN
from mlxceld.config import Settings
from mlxceld.engine.engine import Engine

MakeSettings = Callable[..., Settings]


def body(*tokens: int, **more: Any) -> dict[str, Any]:
    return {"prompt": list(tokens), "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}


async def test_it_is_500_with_the_reason(damaged_engine: Engine, settings: MakeSettings) -> None:
    good, bad = body(5, 6, 7, 8), body(5, DAMAGED_TOKEN, 7)
    async with open_api(damaged_engine, settings()) as client:
        alone = await (await client.post("/v1/completions", json=good)).json()
        beside, failed = await asyncio.gather(
            client.post("/v1/completions", json=good), client.post("/v1/completions", json=bad)
        )
        error = await error_of(failed, 500)
        assert "the model's logits are not numbers" in error["message"]
        assert (await beside.json())["choices"] == alone["choices"]
        assert (await client.get("/readyz")).status == 200


@pytest.mark.parametrize("logprobs", [None, 2])
async def test_a_stream_ends_with_the_reason(
    damaged_engine: Engine, settings: MakeSettings, logprobs: int | None
) -> None:
    async with open_api(damaged_engine, settings()) as client:
        sent = body(5, DAMAGED_TOKEN, 7, stream=True, logprobs=logprobs)
        raw = await (await client.post("/v1/completions", json=sent)).text()
    assert "the model's logits are not numbers" in raw
    assert "NaN" not in raw.replace("(NaN or infinite)", "")
    assert not any(event.get("choices") for event in parse_sse(raw) if isinstance(event, dict))
