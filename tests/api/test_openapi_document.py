"""The public API's own description."""

from __future__ import annotations

from collections.abc import Callable

from api_harness import ScriptedEngine, metrics_text, open_api
from mlxceld.api.app import create_app
from mlxceld.api.keys import ApiKeys
from mlxceld.api.middleware import OPEN_ROUTES
from mlxceld.api.openai.schemas import ChatRequest
from mlxceld.api.openapi import BODIES, REASONS, describe
from mlxceld.config import Settings


def test_every_route_is_described_from_the_model_that_validates_it(
    scripted: ScriptedEngine, settings: Callable[..., Settings]
) -> None:
    app = create_app(scripted, settings(), ApiKeys.none(), metrics_text=metrics_text)
    made = describe(app)
    described = {
        (method.upper(), path) for path, methods in made["paths"].items() for method in methods
    }
    served = {
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert described == served
    chat = made["components"]["schemas"]["ChatRequest"]
    assert set(chat["properties"]) == set(ChatRequest.model_fields)
    assert "messages" in chat["required"]
    assert set(BODIES) <= {path for _, path in served}
    told = made["paths"]["/v1/chat/completions"]["post"]
    assert set(told["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert "429" in told["responses"]
    for path in OPEN_ROUTES:
        assert made["paths"][path]["get"]["security"] == []
    assert all(reason.endswith(".") for reason in REASONS.values())


async def test_the_document_is_served(
    scripted: ScriptedEngine, settings: Callable[..., Settings]
) -> None:
    async with open_api(scripted, settings()) as client:
        response = await client.get("/openapi.json")
        answer = await response.json()
        assert answer["openapi"].startswith("3.1")
        assert answer == await (await client.get("/openapi.json")).json()
