"""Every field of the vendor's request is honoured, refused by name or ignored for a reason."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, get_type_hints

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)

from api_harness import ScriptedEngine, delta, finished, open_api, say
from mlxceld.api.responses.fields import IGNORED, NOTED, REFUSED, SAMPLING
from mlxceld.api.responses.schemas import CountRequest, ResponsesRequest
from mlxceld.config import Settings
from mlxceld.engine.engine import Engine
from mlxceld.models.reasoning import EFFORTS

MANUAL = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text(encoding="utf-8")
READ = {*ResponsesRequest.model_fields, *CountRequest.model_fields, *SAMPLING}


@pytest.fixture
async def told(
    scripted: ScriptedEngine, settings: Callable[..., Settings]
) -> AsyncIterator[tuple[AsyncOpenAI, ScriptedEngine]]:
    scripted.on_submit = lambda stream: say(stream, delta("Yes."), finished())
    async with (
        open_api(scripted, settings()) as client,
        AsyncOpenAI(base_url=str(client.make_url("/v1")), api_key="k", max_retries=0) as ai,
    ):
        yield ai, scripted


@pytest.mark.parametrize(
    "params",
    [ResponseCreateParamsNonStreaming, ResponseCreateParamsStreaming, InputTokenCountParams],
)
def test_every_field_of_the_sdk_is_in_one_class(params: Any) -> None:
    fields = set(get_type_hints(params))
    assert {"input", "model", "truncation"} <= fields
    assert fields - READ - set(REFUSED) - set(NOTED) - set(IGNORED) == set()


def test_the_classes_do_not_overlap_and_are_described() -> None:
    classes = [READ, set(REFUSED), set(NOTED), set(IGNORED)]
    assert sum(map(len, classes)) == len(set.union(*classes))
    start = MANUAL.index("### Responses\n")
    section = MANUAL[start : MANUAL.index("\n### ", start + 1)]
    named = set(re.findall(r"`([a-z_]+)(?:\.[a-z_]+)?`", section))
    assert set.union(*classes) - named == set()


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"conversation": "conv_1"}, "conversation"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"messages": [{"role": "user", "content": "Hi"}]}, "messages"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"n": 2}, "n"),
        ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm"),
    ],
)
async def test_what_would_be_lost_is_refused_by_name(
    told: tuple[AsyncOpenAI, ScriptedEngine], change: dict[str, Any], param: str
) -> None:
    ai, engine = told
    with pytest.raises(openai.BadRequestError) as caught:
        await ai.responses.create(model="m", input="Hello", extra_body=change)
    assert (caught.value.param, caught.value.code) == (param, "unsupported_parameter")
    assert param in caught.value.message
    assert not engine.requests


async def test_null_and_defaults_are_fine(told: tuple[AsyncOpenAI, ScriptedEngine]) -> None:
    ai, _ = told
    nothing = dict.fromkeys([*REFUSED, *NOTED, *IGNORED, *(READ - {"input", "model", "stream"})])
    await ai.responses.create(model="m", input="Hello", extra_body=nothing)
    defaults = {"background": False, "n": 1, "generate": True, "truncation": "disabled"}
    response = await ai.responses.create(model="m", input="Hello", extra_body=defaults)
    assert response.metadata == {}


async def test_fields_that_are_skipped_are_noted(
    told: tuple[AsyncOpenAI, ScriptedEngine], caplog: pytest.LogCaptureFixture
) -> None:
    ai, _ = told
    caplog.set_level("INFO", "mlxceld.api.notes")
    raw = await ai.responses.with_raw_response.create(
        model="m",
        input="Hello",
        truncation="auto",
        context_management=[{"type": "compaction"}],
        moderation={"model": "m"},
        metadata={"mine": "stays"},
    )
    response = raw.parse()
    assert response.truncation == "disabled"
    assert response.metadata is not None
    assert response.metadata["mine"] == "stays"
    note = response.metadata["mlxceld_notes"]
    assert "truncation: nothing is dropped" in note
    assert "context_management: nothing is compacted" in note
    assert "moderation: nothing is moderated here" in note
    assert raw.headers["x-mlxceld-notes"] == note
    assert len([record for record in caplog.records if "skipped" in record.message]) == 1


async def test_a_prompt_that_is_too_long_is_an_error_with_truncation_too(
    engine: Engine, settings: Callable[..., Settings]
) -> None:
    async with (
        open_api(engine, settings()) as client,
        AsyncOpenAI(base_url=str(client.make_url("/v1")), api_key="k") as ai,
    ):
        fits = await ai.responses.create(
            model="m", input="Hello", truncation="auto", max_output_tokens=2
        )
        assert fits.usage is not None
        assert fits.usage.output_tokens == 2
        with pytest.raises(openai.BadRequestError) as caught:
            await ai.responses.create(model="m", input="Hello" * 200, truncation="auto")
    assert caught.value.code == "context_length_exceeded"


async def test_sampling_fields_of_other_servers_are_honoured(
    told: tuple[AsyncOpenAI, ScriptedEngine],
) -> None:
    ai, engine = told
    more = {"top_k": 5, "seed": 7, "stop": ["END"], "presence_penalty": 0.5}
    await ai.responses.create(model="m", input="Hello", max_output_tokens=9, extra_body=more)
    sampling = engine.requests[0].sampling
    assert (sampling.top_k, sampling.seed, sampling.stop) == (5, 7, ("END",))
    assert (sampling.presence_penalty, sampling.max_tokens) == (0.5, 9)


@pytest.mark.parametrize("effort", EFFORTS)
async def test_efforts_are_taken_and_echoed(
    told: tuple[AsyncOpenAI, ScriptedEngine], effort: Any
) -> None:
    ai, _ = told
    response = await ai.responses.create(
        model="m", input="Hello", reasoning={"effort": effort, "summary": "auto"}
    )
    assert response.reasoning is not None
    assert (response.reasoning.effort, response.reasoning.summary) == (effort, "auto")


async def test_an_unknown_effort_is_refused(told: tuple[AsyncOpenAI, ScriptedEngine]) -> None:
    ai, _ = told
    reasoning: Any = {"effort": "huge"}
    with pytest.raises(openai.BadRequestError) as caught:
        await ai.responses.create(model="m", input="Hello", reasoning=reasoning)
    assert caught.value.param == "reasoning.effort"
    assert "'none', 'minimal'" in caught.value.message
    update: Any = {"type": "configuration_update", "reasoning": reasoning}
    hello: Any = {"role": "user", "content": "Hello"}
    with pytest.raises(openai.BadRequestError) as caught:
        await ai.responses.create(model="m", input=[hello, update])
    assert caught.value.param == "input[1].reasoning.effort"
