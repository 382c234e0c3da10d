"""The admin API's routes: what they answer, what they refuse, what they put on record."""

from __future__ import annotations

import json
import logging
import os
import random
import re
from concurrent.futures import Future
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from admin_harness import CacheEngine, prompts_over, request_status, resolved_settings
from mlxceld import __version__
from mlxceld.admin.app import PREFIX, create_admin_app
from mlxceld.admin.cache import BUDGET_FIELDS
from mlxceld.admin.reports import ReloadReport
from mlxceld.prompt_cache.key import session_hash
from mlxceld.prompt_cache.rejects import RejectReason
from mlxceld.prompt_cache.reports import EntryReport
from mlxceld.telemetry.audit import AuditLog
from mlxceld.telemetry.cache_stats import CacheStats
from mlxceld.telemetry.status import EngineState

JSON = {"Content-Type": "application/json"}


class Records(logging.Handler):
    """The fields of every audit line."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.fields.append(record.fields)  # type: ignore[attr-defined]


class Api:
    """A client of the admin API over TCP, with what it acts on at hand."""

    def __init__(self, engine: CacheEngine, client: TestClient, audit: Records) -> None:
        self.engine = engine
        self.audit = audit
        self._client = client

    async def call(self, method: str, path: str, body: Any = None, **kwargs: Any):
        if body is not None:
            kwargs["json"] = body
        response = await self._client.request(method, f"{PREFIX}/{path}", **kwargs)
        return response, await response.json()

    async def ok(self, method: str, path: str, body: Any = None) -> Any:
        response, answer = await self.call(method, path, body)
        assert response.status == 200, answer
        return answer

    async def refused(self, status: int, method: str, path: str, body: Any = None, **kwargs: Any):
        response, answer = await self.call(method, path, body, **kwargs)
        assert response.status == status, answer
        assert set(answer) == {"error"}
        assert set(answer["error"]) == {"code", "message", "details"}
        return answer["error"]


async def reload(actor: str) -> ReloadReport:
    return ReloadReport(applied={"log.level": {"before": "info", "after": "debug"}})


@pytest.fixture
async def api():
    audit = Records()
    logger = logging.Logger("audit-of-this-test")
    logger.addHandler(audit)
    engine = CacheEngine()
    app = create_admin_app(
        engine,
        prompts_over(engine, resolved_settings()),
        resolved_settings(max_queue=7),
        drain=engine.drain,
        address=lambda: ("127.0.0.1", 4242),
        audit=AuditLog(logger),
        monotonic=lambda: 100.0,
        wall=lambda: 5000.0,
        command_timeout=0.05,
        reload=reload,
    )
    async with TestClient(TestServer(app)) as client:
        yield Api(engine, client, audit)


async def test_status_tells_the_daemon_in_one_object(api):
    api.engine.put([1, 2], nbytes=30)
    api.engine.requests["r"] = request_status("r")
    answer = await api.ok("GET", "status")
    assert (answer["version"], answer["pid"]) == (__version__, os.getpid())
    assert (answer["state"], answer["ready"], answer["idle"]) == ("ready", True, False)
    assert (answer["running"], answer["waiting"], answer["max_queue"]) == (1, 0, 7)
    assert (answer["started_at_unix"], answer["uptime_seconds"]) == (5000.0, 0.0)
    assert (answer["host"], answer["port"]) == ("127.0.0.1", 4242)
    assert answer["model"]["layer_caches"] == {"pageable": 2}
    assert list(answer["model"]["template_steps"]) == ["join_leading_system", "merge_users"]
    assert (answer["cache"]["entries"], answer["cache"]["bytes"]) == (1, 30)


@pytest.mark.parametrize(
    ("state", "ready", "idle"),
    [
        (EngineState.LOADING, False, False),
        (EngineState.READY, True, True),
        (EngineState.DRAINING, False, True),
        (EngineState.FAILED, False, False),
    ],
)
async def test_ready_and_idle_follow_the_engine(api, state, ready, idle):
    api.engine.base = CacheEngine(state=state).base
    answer = await api.ok("GET", "status")
    assert (answer["ready"], answer["idle"]) == (ready, idle)


async def test_cache_stats_are_every_number_in_order(api):
    api.engine.put([1, 2], nbytes=30)
    answer = await api.ok("GET", "cache/stats")
    flat = api.engine.status.cache.as_dict()
    assert list(answer)[: len(flat)] == list(CacheStats().as_dict())
    assert {name: answer[name] for name in flat} == flat


async def test_cache_stats_end_with_the_newest_refusal_of_each_reason(api):
    api.engine.put([1], nbytes=30)
    api.engine.put([1, 2], nbytes=30_000)
    api.engine.put([1], nbytes=30)
    answer = await api.ok("GET", "cache/stats")
    extra = list(answer)[len(CacheStats().as_dict()) :]
    assert extra == [
        f"last_reject_{reason}_{part}"
        for reason in RejectReason
        for part in ("seq_id", "context_len", "at_unix_ms")
    ]
    assert answer["last_reject_oversized_context_len"] == 2
    assert answer["last_reject_prefix_too_short_context_len"] == 1
    assert answer["last_reject_prefix_too_short_at_unix_ms"] == 1_700_000_000_000
    assert answer["last_reject_disabled_at_unix_ms"] is None


async def test_entries_are_listed_by_store_and_session_without_their_text(api):
    api.engine.put([1, 2], session="alice", nbytes=10)
    api.engine.put([3, 4, 5], session="bob", nbytes=20)
    answer = await api.ok("GET", "cache/entries")
    assert answer["total"] == 2
    assert {entry["bytes"] for entry in answer["entries"]} == {10, 20}
    (entry,) = (await api.ok("GET", "cache/entries?session=bob"))["entries"]
    assert (entry["session"], entry["tokens"], entry["store"]) == (session_hash("bob"), 3, "kv")
    assert set(entry) == {field.name for field in fields(EntryReport)}
    assert (await api.ok("GET", "cache/entries?store=snapshots")) == {"entries": [], "total": 0}
    short = await api.ok("GET", "cache/entries?limit=1")
    assert (len(short["entries"]), short["total"]) == (1, 2)
    assert api.audit.fields == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("store=disk", "store"),
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("limit=10001", "limit"),
        ("session=", "session"),
        ("limit=1&limit=2", "limit"),
        ("sort=age", "sort"),
    ],
)
async def test_a_bad_query_of_entries_is_refused_by_name(api, query, field):
    error = await api.refused(400, "GET", f"cache/entries?{query}")
    assert error["details"]["field"] == field


async def test_a_resize_takes_effect_and_is_reported_and_recorded(api):
    for token in range(4):
        api.engine.put([token, 0], nbytes=1000)
    change = {"capacity_bytes": 2500, "ttl_seconds": 60, "snapshot_max_entries": 0}
    dry = await api.ok("PATCH", "cache/budget", {**change, "dry_run": True})
    assert (dry["evicted_entries"], dry["dry_run"], dry["generation"]) == (2, True, 0)
    assert len(api.engine.store) == 4
    done = await api.ok("PATCH", "cache/budget", change)
    assert (done["evicted_entries"], done["evicted_bytes"], done["generation"]) == (2, 2000, 1)
    assert (done["before"]["capacity_bytes"], done["after"]["capacity_bytes"]) == (10_000, 2500)
    assert (done["after"]["ttl_seconds"], done["after"]["max_entries"]) == (60, 100)
    assert done["persistent"] is False
    assert [line["outcome"] for line in api.audit.fields] == ["dry_run", "ok"]
    assert api.audit.fields[1]["before"]["capacity_bytes"] == 10_000
    assert api.audit.fields[1]["after"]["capacity_bytes"] == 2500


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_entries": -1}, "max_entries"),
        ({"max_entries": True}, "max_entries"),
        ({"max_entries": 1.5}, "max_entries"),
        ({"capacity_bytes": "8GiB"}, "capacity_bytes"),
        ({"capacity_bytes": 2**63}, "capacity_bytes"),
        ({"ttl_seconds": -0.5}, "ttl_seconds"),
        ({"ttl_seconds": [1]}, "ttl_seconds"),
        ({"capacity_bytes": 1, "dry_run": "no"}, "dry_run"),
        ({"capacity": 1}, "capacity"),
    ],
)
async def test_a_bad_budget_is_refused_by_name_and_changes_nothing(api, body, field):
    error = await api.refused(400, "PATCH", "cache/budget", body)
    assert error["details"]["field"] == field
    assert field in error["message"]
    assert api.engine.prompt_cache.generation == 0
    assert api.audit.fields[0]["outcome"] == "invalid_request"


async def test_an_unknown_field_is_told_its_likely_name(api):
    error = await api.refused(400, "PATCH", "cache/budget", {"max_entrys": 1})
    assert "did you mean 'max_entries'?" in error["message"]


async def test_a_resize_without_a_limit_is_refused(api):
    error = await api.refused(400, "PATCH", "cache/budget", {"dry_run": True})
    assert "nothing to change" in error["message"]


async def test_flush_drops_by_session_and_store_and_never_records_the_raw_key(api):
    api.engine.put([1, 2], session="alice", nbytes=10)
    api.engine.put([3, 4], session="bob", nbytes=20)
    assert (await api.ok("POST", "cache/flush", {"store": "snapshots"}))["entries"] == 0
    dry = await api.ok("POST", "cache/flush", {"session": "alice", "dry_run": True})
    assert (dry["entries"], dry["bytes"], dry["store"]) == (1, 10, "all")
    assert len(api.engine.store) == 2
    assert (await api.ok("POST", "cache/flush", {"session": "alice"}))["bytes"] == 10
    assert (await api.ok("POST", "cache/flush", {"store": "kv"}))["bytes"] == 20
    assert len(api.engine.store) == 0
    assert "alice" not in json.dumps(api.audit.fields)
    assert api.audit.fields[2]["target"] == f"cache/all/session:{session_hash('alice')}"


@pytest.mark.parametrize(
    ("body", "field"),
    [({"store": "disk"}, "store"), ({"session": ""}, "session"), ({"session": 5}, "session")],
)
async def test_a_bad_flush_is_refused_by_name(api, body, field):
    api.engine.put([1, 2])
    assert (await api.refused(400, "POST", "cache/flush", body))["details"]["field"] == field
    assert len(api.engine.store) == 1


async def test_the_trace_is_switched_and_its_tail_read(api):
    api.engine.put([1, 2], session="alice")
    assert await api.ok("PUT", "trace", {"enabled": True}) == {"enabled": True}
    answer = await api.ok("GET", "trace?n=5")
    assert answer["enabled"] is True
    (event,) = answer["events"]
    assert (event["event"], event["session"]) == ("store", session_hash("alice"))
    assert (await api.ok("GET", "trace?n=0"))["events"] == []
    assert (api.audit.fields[0]["before"], api.audit.fields[0]["after"]) == (False, True)


@pytest.mark.parametrize("n", ["-1", "257", "x", "", "1e2", "\u0663", "9" * 5000])
async def test_a_bad_tail_length_is_refused(api, n):
    error = await api.refused(400, "GET", "trace", params={"n": n})
    assert error["details"]["field"] == "n"


async def test_the_switch_needs_its_field(api):
    await api.refused(400, "PUT", "trace", {})
    await api.refused(400, "PUT", "trace", {"enabled": "on"})
    assert api.engine.trace.enabled is False


async def test_requests_are_listed_by_age_and_cancelled_by_id(api):
    api.engine.requests["late"] = request_status("late", 2)
    api.engine.requests["a/b c"] = request_status("a/b c", 1)
    answer = await api.ok("GET", "requests")
    assert [item["id"] for item in answer["requests"]] == ["a/b c", "late"]
    assert answer["requests"][0]["phase"] == "decode"
    assert await api.ok("DELETE", "requests/a%2Fb%20c") == {"id": "a/b c", "cancelled": True}
    error = await api.refused(404, "DELETE", "requests/a%2Fb%20c")
    assert (error["code"], error["details"]) == ("not_found", {"id": "a/b c"})
    assert [line["outcome"] for line in api.audit.fields] == ["ok", "not_found"]


async def test_drain_stops_the_intake(api):
    answer = await api.ok("POST", "drain", {})
    assert answer == {"draining": True, "running": 0, "waiting": 0}
    assert api.engine.drained
    assert (await api.ok("GET", "status"))["state"] == "draining"


async def test_config_tells_every_setting_with_its_source(api):
    answer = await api.ok("GET", "config")
    settings = answer["settings"]
    assert settings["max_queue"] == {"value": 7, "source": "flag"}
    assert settings["prompt_cache.min_prefix"]["source"] == "default"
    assert settings["log.level"]["value"] == "info"
    assert isinstance(settings["state_dir"]["value"], str)
    assert (answer["config_file"], answer["warnings"], answer["notes"]) == (None, [], [])


FIELDS = (*BUDGET_FIELDS, "generation", "dry_run", "store", "session", "enabled")

MUTATIONS = [
    ("PATCH", "cache/budget"),
    ("POST", "cache/flush"),
    ("PUT", "trace"),
    ("POST", "drain"),
    ("POST", "config/reload"),
    ("POST", "cache/warm"),
    ("POST", "cache/verify"),
]


@pytest.mark.parametrize(("method", "path"), MUTATIONS)
@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
async def test_only_json_changes_anything(api, method, path, kind):
    headers = {} if kind is None else {"Content-Type": kind}
    error = await api.refused(415, method, path, data=b"{}", headers=headers)
    assert error["code"] == "unsupported_media_type"
    assert not api.engine.drained
    assert api.audit.fields[0]["outcome"] == "unsupported_media_type"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "not JSON"),
        (b"[]", "array"),
        (b"null", "null"),
        (b'{"capacity_bytes": NaN}', "NaN is not JSON"),
        (b'{"capacity_bytes": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"[" * 60_000, "nested"),
    ],
)
async def test_a_body_that_is_no_object_is_refused(api, body, says):
    error = await api.refused(400, "PATCH", "cache/budget", data=body, headers=JSON)
    assert says in error["message"]


async def test_no_body_at_all_makes_it_fail_itself(api):
    rng = random.Random(7)

    def value(depth: int) -> Any:
        plain = [None, True, 0, -1, 2**70, 0.5, 1e308, "", "all", "x\ud800", "8GiB"]
        if depth == 0 or rng.random() < 0.6:
            return rng.choice(plain)
        if rng.random() < 0.5:
            return [value(depth - 1) for _ in range(rng.randrange(3))]
        return {rng.choice([*FIELDS, "odd"]): value(depth - 1) for _ in range(rng.randrange(4))}

    statuses = set()
    for _ in range(400):
        method, path = rng.choice(MUTATIONS)
        raw = bytearray(json.dumps(value(2)).encode())
        if raw and rng.random() < 0.3:
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        response, answer = await api.call(method, path, data=bytes(raw), headers=JSON)
        statuses.add(response.status)
        assert response.status == 200 or set(answer) == {"error"}
    assert statuses == {200, 400}


async def test_a_large_body_is_refused(api):
    error = await api.refused(413, "POST", "cache/flush", data=b" " * 70_000, headers=JSON)
    assert error["details"]["limit"] == 65536
    assert api.audit.fields[0]["outcome"] == "body_too_large"


async def test_no_get_changes_anything_and_other_methods_are_named(api):
    for method, path in MUTATIONS:
        if path == "trace":
            continue
        response, answer = await api.call("GET", path)
        assert response.status == 405
        assert response.headers["Allow"] == method
        assert answer["error"]["details"]["allowed"] == [method]
    assert api.audit.fields == []


async def test_an_unknown_path_is_refused_in_the_same_shape(api):
    error = await api.refused(404, "GET", "cache/entires")
    assert "/admin/v1/cache/entires" in error["message"]


async def test_every_answer_carries_the_request_id_and_is_not_kept(api):
    response, _ = await api.call("GET", "status", headers={"X-Request-Id": "mine-1"})
    assert response.headers["X-Request-Id"] == "mine-1"
    assert response.headers["Cache-Control"] == "no-store"
    response, _ = await api.call("GET", "nowhere", headers={"X-Request-Id": "a b"})
    assert len(response.headers["X-Request-Id"]) == 32
    await api.call("POST", "drain", {}, headers={"X-Request-Id": "mine-2"})
    assert api.audit.fields[0]["request_id"] == "mine-2"


async def test_an_order_the_engine_does_not_get_to_is_withdrawn(api):
    api.engine.stuck = True
    error = await api.refused(504, "POST", "cache/flush", {})
    assert error["code"] == "timed_out"
    assert "nothing was changed" in error["message"]
    (order,) = api.engine.orders
    assert order.cancelled()
    assert api.audit.fields[0]["outcome"] == "timed_out"


async def test_an_order_under_way_at_the_time_limit_is_not_called_undone(api):
    running: Future[Any] = Future()
    running.set_running_or_notify_cancel()
    api.engine.flush = lambda **_: running
    error = await api.refused(504, "POST", "cache/flush", {})
    assert "may still be carried out" in error["message"]


async def test_a_stopped_engine_is_not_ready(api):
    api.engine.stopped = True
    error = await api.refused(503, "PATCH", "cache/budget", {"max_entries": 1})
    assert (error["code"], error["message"]) == ("not_ready", "the engine is stopped")


async def test_a_fault_is_an_error_of_the_same_shape_and_on_record(api, caplog):
    failed: Future[Any] = Future()
    failed.set_exception(RuntimeError("boom"))
    api.engine.flush = lambda **_: failed
    error = await api.refused(500, "POST", "cache/flush", {})
    assert error["code"] == "internal_error"
    assert "boom" not in error["message"]
    assert "boom" in caplog.text
    assert api.audit.fields[0]["outcome"] == "internal_error"


async def test_the_actor_is_unknown_where_the_kernel_does_not_vouch(api):
    await api.ok("POST", "drain", {})
    (line,) = api.audit.fields
    assert (line["actor"], line["action"], line["target"]) == ("unknown", "drain", "daemon")


def test_the_manual_lists_the_routes_and_no_others():
    manual = (Path(__file__).parents[2] / "docs" / "mlxctl.md").read_text()
    engine = CacheEngine()
    app = create_admin_app(
        engine, prompts_over(engine, resolved_settings()), resolved_settings(), drain=engine.drain
    )
    routes = {
        (route.method, route.resource.canonical.removeprefix(PREFIX))
        for route in app.router.routes()
        if route.method != "HEAD"
    }
    listed = re.findall(r"^\| `(GET|POST|PUT|PATCH|DELETE) (/[^`]*)`", manual, re.M)
    assert set(listed) == routes
    budget = next(line for line in manual.splitlines() if "PATCH /cache/budget" in line)
    assert all(f"`{name}`" in budget for name in BUDGET_FIELDS)
