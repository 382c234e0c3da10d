"""Orders that depend on how things are: generations, pins, the self-check, the reload."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from admin_harness import CacheEngine, resolved_settings
from mlxceld.admin.app import PREFIX, create_admin_app
from mlxceld.admin.openapi import REASONS, describe, operations
from mlxceld.admin.reports import ReloadError, ReloadReport
from mlxceld.api.errors import invalid
from mlxceld.api.prompts import Api, Prompt
from mlxceld.engine.events import Finished, FinishReason, Usage


class ReadPrompts:
    """Turns each message, and each word of a text, into a token; notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, Any], Api | None]] = []

    async def to_keep(self, body: dict[str, Any], api: Api | None = None) -> Prompt:
        self.asked.append((body, api))
        if "prompt" in body:
            tokens = [len(word) for word in body["prompt"].split()]
        elif "messages" in body:
            tokens = [len(message["content"]) for message in body["messages"]]
        else:
            raise invalid("messages", "neither is given, expected one of messages and prompt")
        return Prompt(tokens, "sig", "of the body", kept_tokens=len(tokens))


class Stream:
    """A request that is computed and stored at once."""

    def __init__(self, engine: WarmEngine, request: Any) -> None:
        self._engine, self._request = engine, request

    async def __aiter__(self):
        self._engine.put(list(self._request.tokens), session=self._request.session)
        usage = Usage(len(self._request.tokens), 1, 0)
        yield Finished(FinishReason.LENGTH, usage, prefill_seconds=0.5)

    def cancel(self) -> bool:
        return False


class WarmEngine(CacheEngine):
    """An engine whose requests end at once; its entries can be pinned."""

    def __init__(self) -> None:
        super().__init__()
        self.submitted: list[Any] = []
        self.prompts = ReadPrompts()
        self.store.can_pin = True

    def submit(self, requests):
        self.submitted += requests
        return [Stream(self, request) for request in requests]


class Admin:
    def __init__(self, engine: WarmEngine, client: TestClient) -> None:
        self.engine, self.client = engine, client

    async def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        response = await self.client.request(method, f"{PREFIX}/{path}", json=body)
        return response.status, await response.json()


@pytest.fixture
async def admin():
    engine = WarmEngine()

    async def reload(actor: str) -> ReloadReport:
        if engine.stopped:
            raise ReloadError("f.yaml:1:1 port: bad", ["f.yaml:1:1 port: bad"])
        return ReloadReport(
            applied={"log.level": {"before": "info", "after": "debug"}},
            needs_restart={"port": {"before": "1", "after": "2"}},
        )

    app = create_admin_app(
        engine, engine.prompts, resolved_settings(), drain=engine.drain, reload=reload
    )
    async with TestClient(TestServer(app)) as client:
        yield Admin(engine, client)


async def test_a_resize_of_an_old_generation_is_a_conflict_that_tells_the_current_one(admin):
    assert (await admin("PATCH", "cache/budget", {"max_entries": 9, "generation": 0}))[0] == 200
    status, answer = await admin("PATCH", "cache/budget", {"max_entries": 5, "generation": 0})
    assert (status, answer["error"]["code"]) == (409, "conflict")
    assert answer["error"]["details"] == {"field": "generation", "generation": 1}
    assert admin.engine.store.budget.max_entries == 9


async def test_a_conversation_is_warmed_pinned_and_unpinned(admin):
    body = {
        "messages": [{"role": "system", "content": "abc"}, {"role": "assistant", "content": "x"}]
    }
    status, answer = await admin("POST", "cache/warm", {**body, "session": "s", "pin": True})
    assert status == 200
    assert (answer["tokens"], answer["pinned"], answer["seconds"]) == (2, True, 0.5)
    (request,) = admin.engine.submitted
    assert (list(request.tokens), request.background) == ([3, 1], True)
    (entry,) = (await admin("GET", "cache/entries"))[1]["entries"]
    assert (entry["digest"], entry["pins"]) == (answer["digest"], 1)
    assert (await admin("DELETE", f"cache/pins/{entry['digest']}"))[1]["pins"] == 0
    status, answer = await admin("DELETE", f"cache/pins/{entry['digest']}")
    assert (status, answer["error"]["code"]) == (404, "not_found")


async def test_a_body_is_handed_on_as_it_was_sent(admin):
    body = {"messages": [{"role": "user", "content": "abcd"}], "tools": [], "model": "any"}
    await admin("POST", "cache/warm", {**body, "pin": False, "session": "s"})
    await admin("POST", "cache/warm", {"prompt": "two words", "api": "completions"})
    assert admin.engine.prompts.asked == [(body, None), ({"prompt": "two words"}, "completions")]
    assert [r.session for r in admin.engine.submitted] == ["s", "of the body"]


async def test_who_does_not_wait_gets_the_id(admin):
    status, answer = await admin("POST", "cache/warm", {"prompt": "two words", "wait": False})
    assert (status, answer["tokens"]) == (202, 2)
    assert answer["id"].startswith("warm-")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "expected one of messages and prompt"),
        ({"prompt": "a", "api": "rest"}, "one of"),
        ({"prompt": "a", "session": ""}, "a string that is not empty"),
        ({"prompt": "a", "pin": 1}, "true or false"),
    ],
)
async def test_a_bad_order_to_warm_is_refused(admin, body, says):
    status, answer = await admin("POST", "cache/warm", body)
    assert status == 400
    assert says in answer["error"]["message"]
    assert admin.engine.submitted == []


async def test_what_was_not_stored_is_a_conflict(admin):
    status, answer = await admin("POST", "cache/warm", {"prompt": "one"})  # below min_prefix
    assert (status, answer["error"]["code"]) == (409, "conflict")
    assert "could not be stored" in answer["error"]["message"]


async def test_the_self_check_is_told(admin):
    status, answer = await admin("POST", "cache/verify", {})
    assert (status, answer["passed"]) == (200, True)
    assert answer["checks"][0]["kind"] == "pageable"


async def test_a_reload_reports_or_names_what_is_wrong(admin):
    status, answer = await admin("POST", "config/reload", {})
    assert status == 200
    assert answer["applied"] == {"log.level": {"before": "info", "after": "debug"}}
    assert list(answer["needs_restart"]) == ["port"]
    admin.engine.stopped = True
    status, answer = await admin("POST", "config/reload", {})
    assert (status, answer["error"]["code"]) == (422, "invalid_config")
    assert answer["error"]["details"]["problems"] == ["f.yaml:1:1 port: bad"]


async def test_the_document_is_served_and_names_every_route_and_no_other(admin):
    response = await admin.client.get("/openapi.json")
    assert await response.json() == describe(PREFIX)
    served = {
        (route.method, route.resource.canonical)
        for route in admin.client.app.router.routes()
        if route.method != "HEAD"
    }
    assert {(one.method, one.path) for one in operations(PREFIX)} == served


def test_the_document_has_what_validates():
    made = describe(PREFIX)
    budget = made["components"]["schemas"]["BudgetPatch"]
    assert budget["additionalProperties"] is False
    sizes = budget["properties"]["capacity_bytes"]["anyOf"][0]
    assert (sizes["type"], sizes["minimum"]) == ("integer", 0)
    told = made["paths"][f"{PREFIX}/cache/budget"]["patch"]
    assert "409" in told["responses"]
    assert all(set(one.errors) <= set(REASONS) for one in operations(PREFIX))
