"""Health, cache statistics, metrics and models."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields

from api_harness import ScriptedEngine, error_of, open_api
from mlxceld.config import Settings
from mlxceld.telemetry.cache_stats import CacheStats
from mlxceld.telemetry.status import EngineState

MakeSettings = Callable[..., Settings]


async def test_alive_is_all_but_a_busy_engine_that_does_not_move(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    async with open_api(scripted, settings(), clock=lambda: 1000.0, stall_limit=300.0) as client:
        scripted.state(state=EngineState.LOADING, busy=False, heartbeat=0.0)
        assert (await client.get("/livez")).status == 200
        scripted.state(busy=True, heartbeat=700.0)
        assert (await client.get("/livez")).status == 200
        scripted.state(busy=True, heartbeat=699.0)
        stalled = await client.get("/livez")
        assert stalled.status == 503
        assert "not moved for 301 s" in (await stalled.json())["reason"]
        scripted.state(busy=False, heartbeat=699.0)
        assert (await client.get("/livez")).status == 200


async def test_ready_is_only_who_answers_requests(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    async with open_api(scripted, settings(max_queue=9)) as client:
        scripted.state(running=2, waiting=1)
        assert (await client.get("/readyz")).status == 200
        health = await client.get("/health")
        assert health.status == 200
        body = await health.json()
        assert body["status"] == "ok"
        assert body["model"] == "llama"
        assert (body["running"], body["waiting"], body["max_queue"]) == (2, 1, 9)
        for change, reason in (
            ({"state": EngineState.LOADING, "detail": "weights"}, "the engine is loading: weights"),
            ({"state": EngineState.DRAINING, "detail": ""}, "the engine is draining"),
            ({"state": EngineState.FAILED, "detail": "no file"}, "the engine is failed: no file"),
            ({"detail": "", "fault": "3 engine faults in a row"}, "3 engine faults in a row"),
        ):
            scripted.state(**change)
            for path in ("/readyz", "/health"):
                response = await client.get(path)
                assert response.status == 503
                assert (await response.json())["reason"] == reason


async def test_cache_stats_are_complete_and_in_order(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    scripted.state(cache=CacheStats(hits=3, lookups=4, hit_rate=0.75))
    async with open_api(scripted, settings()) as client:
        response = await client.get("/v1/cache/stats")
        stats = json.loads(await response.text())
        assert list(stats) == [field.name for field in fields(CacheStats)]
        assert (stats["hits"], stats["hit_rate"]) == (3, 0.75)
        assert stats["last_reject_reason"] is None


async def test_metrics_come_in_the_form_that_is_asked_for(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    async with open_api(scripted, settings()) as client:
        response = await client.get("/metrics", headers={"Accept": "text/openmetrics"})
        assert await response.text() == "# for text/openmetrics\n"
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_the_model_is_listed_with_its_other_names(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    async with open_api(scripted, settings(alias=("gpt-4o", "org/own", "llama"))) as client:
        body = await (await client.get("/v1/models")).json()
        assert body["object"] == "list"
        assert [entry["id"] for entry in body["data"]] == ["llama", "gpt-4o", "org/own"]
        assert {entry["root"] for entry in body["data"]} == {"llama"}
        assert {entry["context_length"] for entry in body["data"]} == {512}
        for path in ("/v1/models/org/own", "/v1/models/org%2Fown"):
            assert (await (await client.get(path)).json())["id"] == "org/own"
        error = await error_of(await client.get("/v1/models/other"), 404)
        assert error["code"] == "model_not_found"
        assert error["message"].endswith("valid ids are: llama, gpt-4o, org/own")
