"""A refused request is seen: in the log, and in two counters."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from api_harness import ScriptedEngine, open_api, say
from mlxceld.api.context import CLIENT, REQUEST_ID
from mlxceld.api.keys import ApiKeys
from mlxceld.api.refusals import LINES, SUBMITTED, WINDOW_SECONDS, Refusals
from mlxceld.config import Settings
from mlxceld.engine.errors import NotReadyError, QueueFullError
from mlxceld.engine.events import Failed, FailureKind, Usage
from mlxceld.telemetry.refusals import CODES, RefusalCounts

MakeSettings = Callable[..., Settings]
CHAT = "/v1/chat/completions"
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    """The fields of the refusals that were logged since the last call."""
    caplog.set_level(logging.INFO, logger="mlxceld.request")

    def take() -> list[dict[str, Any]]:
        found = [
            {"message": record.getMessage(), **getattr(record, "fields", {})}
            for record in caplog.records
            if record.name == "mlxceld.request"
        ]
        caplog.clear()
        return found

    return take


def counted(counts: RefusalCounts) -> dict[tuple[str, str], int]:
    return {labels: count for labels, count in counts.counts().items() if count}


async def test_each_kind_of_refusal_is_a_line_and_a_count(
    scripted: ScriptedEngine, settings: MakeSettings, lines: Any, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text("laptop: sk-one\n")
    file.chmod(0o600)
    counts = RefusalCounts()
    key = {"Authorization": "Bearer sk-one", "User-Agent": "codex/1"}
    cases: list[tuple[str, str, dict[str, Any], int, str, str]] = [
        ("POST", CHAT, {"json": {**HI, "temperature": 3}}, 400, "chat", "invalid_request"),
        ("POST", "/v1/messages", {"json": {"messages": []}}, 400, "messages", ""),
        ("POST", CHAT, {"json": HI, "headers": {}}, 401, "chat", "invalid_api_key"),
        (
            *("POST", CHAT, {"json": HI, "headers": {**key, "Host": "evil.example"}}),
            *(403, "chat", "host_not_allowed"),
        ),
        ("GET", "/v1/nowhere", {}, 404, "other", "unknown_url"),
        ("GET", "/v1/completions", {}, 405, "completions", "method_not_allowed"),
        ("POST", "/v1/responses", {"data": b" " * 5000}, 413, "responses", "body_too_large"),
        ("GET", "/v1/responses/resp_x", {}, 404, "other", "response_not_found"),
    ]
    async with open_api(
        scripted, settings(max_body=4096), ApiKeys(file), refusals=counts
    ) as client:
        for method, path, options, status, endpoint, code in cases:
            before = counted(counts)
            response = await client.request(method, path, **{"headers": key, **options})
            assert response.status == status, await response.text()
            (line,) = lines()
            assert line["message"] == "refused"
            assert line["route"] == f"{method} {path}"
            assert line["status"] == status
            assert line["id"] == response.headers["X-Request-Id"]
            assert code in ("", line["code"])
            assert line["client"] == (None if status in (401, 403) else "laptop")
            if "headers" not in options:
                assert line["user_agent"] == "codex/1"
            after = counted(counts)
            gone_up = {labels for labels in after if after[labels] != before.get(labels, 0)}
            assert gone_up == {(endpoint, line["code"])}
    assert sum(counted(counts).values()) == len(cases)


async def test_a_line_names_the_field(
    scripted: ScriptedEngine, settings: MakeSettings, lines: Any
) -> None:
    async with open_api(scripted, settings()) as client:
        await client.post(CHAT, json={**HI, "temperature": 3})
        assert [line["param"] for line in lines()] == ["temperature"]


async def test_what_the_engine_counts_is_not_counted_twice(
    scripted: ScriptedEngine, settings: MakeSettings, lines: Any
) -> None:
    counts = RefusalCounts()
    fault = Failed(FailureKind.REQUEST, "broken", Usage(1, 0, 0))
    async with open_api(scripted, settings(), refusals=counts) as client:
        scripted.on_submit = lambda stream: say(stream, fault)
        assert (await client.post(CHAT, json=HI)).status == 500
        assert lines() == []
        assert counted(counts) == {}
        scripted.refusal = QueueFullError(64, 64, 7)
        assert (await client.post(CHAT, json=HI)).status == 429
        assert [line["code"] for line in lines()] == ["queue_full"]
        # The engine's own outcome "rejected" has it.
        assert counts.before_the_engine()["chat"] == 0
        scripted.refusal = NotReadyError("the engine is draining")
        assert (await client.post(CHAT, json=HI)).status == 503
        assert counts.before_the_engine()["chat"] == 1
    assert counted(counts) == {("chat", "queue_full"): 1, ("chat", "not_ready"): 1}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def asked(path: str = CHAT, client: str | None = None) -> web.Request:
    request = make_mocked_request("POST", path)
    request[REQUEST_ID] = "r"
    if client is not None:
        request[CLIENT] = client
    return request


def test_a_storm_is_a_few_lines_and_its_sum(lines: Any) -> None:
    clock, counts = Clock(), RefusalCounts()
    refusals = Refusals(counts, clock)
    for _ in range(1000):
        refusals.record(asked(client="laptop"), 401, "invalid_api_key")
    assert len(lines()) == LINES
    # Another client, code or endpoint has lines of its own.
    refusals.record(asked(client="phone"), 401, "invalid_api_key")
    refusals.record(asked(client="laptop"), 404, "model_not_found")
    refusals.record(asked("/v1/completions", "laptop"), 401, "invalid_api_key")
    assert len(lines()) == 3
    clock.now += WINDOW_SECONDS - 1
    refusals.sweep()
    assert lines() == []
    clock.now += 1
    refusals.sweep()
    (line,) = lines()
    assert (line["endpoint"], line["code"], line["client"]) == ("chat", "invalid_api_key", "laptop")
    assert line["count"] == 1000 - LINES
    refusals.record(asked(client="laptop"), 401, "invalid_api_key")
    assert len(lines()) == 1
    assert counts.counts()["chat", "invalid_api_key"] == 1002


def test_a_storm_that_goes_on_is_summed_up_once_a_window(lines: Any) -> None:
    clock = Clock()
    refusals = Refusals(RefusalCounts(), clock)
    for _ in range(LINES + 5):
        refusals.record(asked(), 404, "unknown_url")
    lines()
    clock.now += WINDOW_SECONDS
    refusals.record(asked(), 404, "unknown_url")
    summed, fresh = lines()
    assert (summed["count"], fresh["message"]) == (5, "refused")


def test_what_is_left_of_a_storm_is_said_at_the_end(lines: Any) -> None:
    refusals = Refusals(RefusalCounts(), Clock())
    for _ in range(LINES + 2):
        refusals.record(asked(), 404, "unknown_url")
    lines()
    refusals.sweep(over=True)
    assert [line["count"] for line in lines()] == [2]


def test_long_names_are_cut(lines: Any) -> None:
    Refusals(RefusalCounts(), Clock()).record(asked("/" + "x" * 5000), 404, "unknown_url")
    assert len(lines()[0]["route"]) == 200


def test_a_request_that_the_engine_has_is_passed_over(lines: Any) -> None:
    counts = RefusalCounts()
    request = asked()
    request[SUBMITTED] = True
    Refusals(counts, Clock()).record(request, 504, "timeout")
    assert (lines(), counted(counts)) == ([], {})


def test_a_code_that_nobody_knows_is_other() -> None:
    counts = RefusalCounts()
    counts.add("chat", "made-up")
    counts.add("made-up", "queue_full")
    assert counted(counts) == {("chat", "other"): 1, ("other", "queue_full"): 1}


def test_every_documented_code_has_a_label() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text()
    table = manual.split("| status | `code` | when |")[1].split("\n\n")[0]
    rows = [row.split("|")[2] for row in table.splitlines() if row.count("|") > 3]
    documented = {code for row in rows for code in re.findall(r"`(\w+)`", row)}
    assert len(documented) > 15
    # A cancelled request and a fault while it ran are the engine's to count.
    assert documented - {"request_cancelled", "engine_fault", "request_fault"} <= set(CODES)
