"""A prompt that leaves no room, in the words that clients act on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anthropic
import openai
import pytest

from api_harness import open_api
from mlxceld.api.errors import ANTHROPIC, from_engine
from mlxceld.config import Settings
from mlxceld.engine.engine import Engine
from mlxceld.engine.errors import ContextLengthError

LONG: list[Any] = [{"role": "user", "content": "x" * 600}]
LIMIT = 512


@pytest.fixture
async def url(engine: Engine, settings: Callable[..., Settings]) -> AsyncIterator[str]:
    async with open_api(engine, settings()) as client:
        yield str(client.make_url("/"))


@pytest.mark.parametrize("stream", [False, True])
async def test_messages(url: str, *, stream: bool) -> None:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as ai:
        counted = await ai.messages.count_tokens(model="m", messages=LONG)
        assert counted.input_tokens > LIMIT
        with pytest.raises(anthropic.BadRequestError) as caught:
            await ai.messages.create(model="m", max_tokens=9, messages=LONG, stream=stream)
    assert caught.value.body == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": f"prompt is too long: {counted.input_tokens} tokens > {LIMIT} maximum",
        },
    }


async def test_openais_routes(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}v1", api_key="k", max_retries=0) as ai:
        for call in (
            ai.chat.completions.create(model="m", messages=LONG),
            ai.completions.create(model="m", prompt="x" * 600),
            ai.responses.create(model="m", input="x" * 600),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                await call  # type: ignore[misc]
            assert caught.value.code == "context_length_exceeded"
            assert f"maximum context length is {LIMIT} tokens" in caught.value.message
            assert "prompt is too long: 6" in caught.value.message


@pytest.mark.parametrize(("tokens", "maximum"), [(5012, 4096), (4097, 4096), (4096, 4095)])
def test_a_full_context_is_too_long_by_the_answers_token(tokens: int, maximum: int) -> None:
    error = from_engine(ContextLengthError(tokens, 4096), prompt_param="messages")
    told = f"prompt is too long: {tokens} tokens > {maximum} maximum"
    assert error.envelope(ANTHROPIC)["error"]["message"] == told
    assert str(error) == f"This model's maximum context length is 4096 tokens; the {told}"
    assert error.param == "messages"
