"""One client's load is its own: what is refused by its size, and what ends with its time."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from api_harness import ScriptedEngine, delta, error_of, finished, open_api, say
from engine_harness import load_tiny
from mlxceld.api.errors import ApiError
from mlxceld.config import Settings
from mlxceld.engine.engine import Engine
from mlxceld.models import metering
from mlxceld.models.text import TextCodec
from mlxceld.web.lanes import LARGE_THREADS, Lanes
from tiny_models import DEFAULT_TEMPLATE, TinyModels

MakeSettings = Callable[..., Settings]

STEP_SECONDS = 30
CONTEXT = 512
LONGEST_TOKEN = len("<|endoftext|>")
TOO_LONG = "x" * (CONTEXT * LONGEST_TOKEN + 1)
LOOPING = (
    "{% if messages[-1]['content'] == 'loop' %}{% for a in range(99999) %}"
    "{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}" + DEFAULT_TEMPLATE
)


class NoTokenizing:
    """The engine's codec, which must neither render nor tokenize."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec

    def __getattr__(self, name: str) -> Any:
        assert name not in ("encode", "render_chat", "decode", "grammar"), name
        return getattr(self._codec, name)


@pytest.fixture
def looping(tiny_models: TinyModels, engine: Engine) -> ScriptedEngine:
    """An engine whose chat template does not end at one word."""
    folder = tiny_models.folder("llama", context_length=CONTEXT, chat_template=LOOPING)
    return ScriptedEngine(load_tiny(folder).text, engine.status)


def message(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": [message(TOO_LONG)]}, "messages"),
        (
            "/v1/chat/completions",
            {"messages": [message([{"type": "text", "text": TOO_LONG}])]},
            "messages",
        ),
        (
            "/v1/chat/completions",
            {
                "messages": [message("hi")],
                "tools": [{"type": "function", "function": {"name": "f", "description": TOO_LONG}}],
            },
            "messages",
        ),
        ("/v1/chat/completions", {"messages": [message("")] * (CONTEXT + 1)}, "messages"),
        ("/v1/responses", {"input": TOO_LONG}, "input"),
        ("/v1/completions", {"prompt": TOO_LONG}, "prompt"),
        ("/v1/completions", {"prompt": ["hi", TOO_LONG]}, "prompt"),
    ],
)
async def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(
    scripted: ScriptedEngine, settings: MakeSettings, route: str, body: Any, param: str
) -> None:
    scripted.text = NoTokenizing(scripted.text)  # type: ignore[assignment]
    async with open_api(scripted, settings()) as client:
        error = await error_of(await client.post(route, json=body), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert f"maximum context length is {CONTEXT} tokens" in error["message"]
    assert f"{CONTEXT + 1} tokens" in error["message"]
    assert not scripted.requests


async def test_so_is_one_in_anthropics_form(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    scripted.text = NoTokenizing(scripted.text)  # type: ignore[assignment]
    body = {"model": "tiny", "max_tokens": 1, "messages": [message(TOO_LONG)]}
    async with open_api(scripted, settings()) as client:
        response = await client.post("/v1/messages", json=body)
        told = await response.json()
        assert response.status == 400
    assert told["error"]["message"].startswith(f"prompt is too long: {CONTEXT + 1} tokens")


async def test_the_routes_of_the_tokenizer_have_bounds_of_their_own(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    async with open_api(scripted, settings()) as client:
        scripted.text = NoTokenizing(scripted.text)  # type: ignore[assignment]
        most = 2**20
        for name in ("content", "prompt"):
            refused = await client.post("/tokenize", json={name: "x" * (most + 1)})
            error = await error_of(refused, 400)
            assert (error["code"], error["param"]) == ("text_too_long", name)
            assert f"at most {most}" in error["message"]
        error = await error_of(
            await client.post("/detokenize", json={"tokens": [97] * 65_537}), 400
        )
        assert (error["code"], error["param"]) == ("too_many_tokens", "tokens")


async def test_a_long_text_comes_back_whole(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    async with open_api(scripted, settings()) as client:
        response = await client.post("/tokenize", json={"content": "ab" * 10_000})
        assert await response.json() == {"tokens": [97, 98] * 10_000, "count": 20_000}
        response = await client.post("/tokenize", json={"content": ""})
        assert await response.json() == {"tokens": [], "count": 0}
        response = await client.post("/detokenize", json={"tokens": [97, 98] * 10_000})
        assert await response.json() == {"content": "ab" * 10_000}


async def test_many_biases_are_refused_by_their_number(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    body = {"messages": [message("hi")], "logit_bias": dict.fromkeys(map(str, range(32_769)), "x")}
    async with open_api(scripted, settings()) as client:
        error = await error_of(await client.post("/v1/chat/completions", json=body), 400)
    assert (
        error["message"] == "logit_bias is an object, expected an object of at most 32768 token ids"
    )


def test_a_list_is_looked_at_up_to_its_first_wrong_element() -> None:
    from mlxceld.api.openai.schemas import ChatRequest
    from mlxceld.api.validation import validate

    wrong = {"messages": [{"role": "nobody", "content": "hi"}] * 3}
    with pytest.raises(ApiError, match=r"messages\[0\].role"):
        validate(ChatRequest, wrong)
    with pytest.raises(ValueError, match="1 validation error"):
        ChatRequest.model_validate(wrong)


async def test_a_template_that_loops_is_cut_off_and_told(
    looping: ScriptedEngine, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metering, "STEPS", 20_000)
    async with open_api(looping, settings()) as client:
        response = await client.post("/v1/chat/completions", json={"messages": [message("loop")]})
        error = await error_of(response, 400)
        assert error["code"] == "chat_template_error"
        assert "did not end within" in error["message"]
        ready = await client.get("/readyz")
        told = await ready.json()
        assert (ready.status, told["status"]) == (200, "ready")
        assert "a rendering was cut off 0 s ago: the chat template did not end" in told["detail"]
        looping.on_submit = lambda stream: say(stream, delta("ok"), finished())
        response = await client.post("/v1/chat/completions", json={"messages": [message("hi")]})
        assert response.status == 200


async def test_a_short_chat_is_answered_beside_renderings_that_do_not_end(
    looping: ScriptedEngine, settings: MakeSettings
) -> None:
    looping.on_submit = lambda stream: say(stream, delta("ok"), finished())
    async with open_api(looping, settings()) as client:
        loops = [
            asyncio.create_task(
                client.post("/v1/chat/completions", json={"messages": [message("loop")]})
            )
            for _ in range(2)
        ]
        response = await client.post("/v1/chat/completions", json={"messages": [message("hi")]})
        assert response.status == 200
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


class Steps:
    """A clock that a test sets forward."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_a_requests_time_runs_from_its_arrival(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    clock = Steps()

    class Slow:
        """Takes five seconds to say whether a conversation may fit."""

        def __getattr__(self, name: str) -> Any:
            return getattr(codec, name)

        def least_tokens(self, texts: Any) -> int:
            clock.now += seconds
            return 1

    codec, seconds = scripted.text, 5.0
    scripted.text = Slow()  # type: ignore[assignment]
    body = {"messages": [message("hi")]}
    async with open_api(scripted, settings(request_timeout=20.0), clock=clock) as client:
        scripted.on_submit = lambda stream: say(stream, delta("ok"), finished())
        assert (await client.post("/v1/chat/completions", json=body)).status == 200
        assert scripted.requests[-1].timeout == pytest.approx(15.0)
        # The time of a connection's next request is its own.
        assert (await client.post("/v1/chat/completions", json=body)).status == 200
        assert scripted.requests[-1].timeout == pytest.approx(15.0)
        seconds = 20.0
        error = await error_of(await client.post("/v1/chat/completions", json=body), 504)
        assert error["code"] == "timeout"
        assert len(scripted.requests) == 2


async def test_a_rendering_that_takes_the_requests_time_is_a_timeout(
    looping: ScriptedEngine, settings: MakeSettings
) -> None:
    times = itertools.chain([1000.0], itertools.repeat(1019.99))
    options = {"clock": lambda: next(times)}
    async with open_api(looping, settings(request_timeout=20.0), **options) as client:
        response = await client.post("/v1/chat/completions", json={"messages": [message("loop")]})
        error = await error_of(response, 504)
    assert error["code"] == "timeout"
    assert not looping.requests


async def test_without_a_limit_there_is_none(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    scripted.on_submit = lambda stream: say(stream, delta("ok"), finished())
    async with open_api(scripted, settings(request_timeout=0.0)) as client:
        body = {"messages": [message("hi")]}
        assert (await client.post("/v1/chat/completions", json=body)).status == 200
    assert scripted.requests[-1].timeout == 0.0


async def test_large_bodies_leave_the_loop_and_the_short_lane_alone(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    scripted.on_submit = lambda stream: say(stream, delta("ok"), finished())
    lanes, go_on = Lanes(), threading.Event()
    async with open_api(scripted, settings(), lanes=lanes) as client:
        held = [
            asyncio.create_task(lanes.run(lambda: go_on.wait(STEP_SECONDS), size=2**20))
            for _ in range(LARGE_THREADS)
        ]
        await asyncio.sleep(0)
        raw = json.dumps({"messages": [message("hi")], "unknown": "x" * 2**20})
        large = asyncio.create_task(client.post("/v1/chat/completions", data=raw))
        body = {"messages": [message("hi")]}
        assert (await client.post("/v1/chat/completions", json=body)).status == 200
        assert (await client.get("/livez")).status == 200
        assert not large.done()
        go_on.set()
        assert (await large).status == 200
        await asyncio.gather(*held)


async def test_memory_of_large_requests_is_given_back(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    class Noting(Lanes):
        asked = 0

        def trim_later(self) -> None:
            self.asked += 1

    scripted.on_submit = lambda stream: say(stream, delta("ok"), finished())
    lanes = Noting()
    async with open_api(scripted, settings(), lanes=lanes) as client:
        await client.post("/v1/chat/completions", json={"messages": [message("x" * 1000)]})
        assert lanes.asked == 0
        await client.post("/v1/chat/completions", json={"messages": [message("x" * 2**20)]})
        assert lanes.asked == 1
