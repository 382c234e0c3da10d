"""The models' list, as the clients of both vendors read it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from api_harness import ScriptedEngine, open_api
from mlxceld.config import Settings


@pytest.fixture
async def url(scripted: ScriptedEngine, settings: Callable[..., Settings]) -> AsyncIterator[str]:
    async with open_api(scripted, settings(alias=("small/one",))) as client:
        yield str(client.make_url("/"))


async def test_anthropics_client(url: str, scripted: ScriptedEngine) -> None:
    model = scripted.status.model
    assert model is not None
    async with AsyncAnthropic(base_url=url, api_key="k") as ai:
        page = await ai.models.list()
        assert [one.id for one in page.data] == [model.id, "small/one"]
        assert (page.has_more, page.first_id, page.last_id) == (False, model.id, "small/one")
        assert [one.id async for one in ai.models.list()] == [one.id for one in page.data]
        single = await ai.models.retrieve("small/one")
        for one in (page.data[1], single):
            assert (one.type, one.display_name, one.lifecycle) == ("model", "small/one", "active")
            assert one.created_at == datetime.fromtimestamp(int(model.loaded_at), UTC)
            assert one.max_input_tokens == one.max_tokens == model.context_length


async def test_openais_client_and_the_length_of_the_context(
    url: str, scripted: ScriptedEngine
) -> None:
    model = scripted.status.model
    assert model is not None
    async with AsyncOpenAI(base_url=f"{url}v1", api_key="k") as ai:
        listed = (await ai.models.list()).data
        single = await ai.models.retrieve(model.id)
        assert listed[0].to_dict() == single.to_dict()
        assert (single.object, single.created) == ("model", int(model.loaded_at))
        for name in ("context_length", "max_model_len", "max_context_length"):
            assert single.to_dict()[name] == model.context_length


async def test_an_unknown_model_is_refused_in_the_envelope_of_who_asks(
    scripted: ScriptedEngine, settings: Callable[..., Settings]
) -> None:
    async with open_api(scripted, settings()) as client:
        ours = await (await client.get("/v1/models/nowhere")).json()
        assert ours["error"]["param"] == "model"
        headers = {"anthropic-version": "2023-06-01"}
        response = await client.get("/v1/models/nowhere", headers=headers)
        theirs = await response.json()
        assert (response.status, theirs["type"]) == (404, "error")
        assert theirs["error"]["type"] == "not_found_error"
        assert "request-id" in response.headers
