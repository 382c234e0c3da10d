"""Streams: silences, errors on the way, slow readers, clients that leave."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from api_harness import (
    ScriptedEngine,
    delta,
    error_of,
    finished,
    open_api,
    parse_sse,
    read_sse,
    say,
    streamed_text,
)
from mlxceld.config import Settings
from mlxceld.engine.engine import Engine
from mlxceld.engine.events import (
    Failed,
    FailureKind,
    Finished,
    FinishReason,
    PrefillProgress,
    Usage,
)

MakeSettings = Callable[..., Settings]
Until = Callable[[Callable[[], Any]], Any]
CHAT = "/v1/chat/completions"
STREAM: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
WHOLE: dict[str, Any] = {**STREAM, "stream": False}


async def _line_with(response: Any, text: str) -> str:
    async with asyncio.timeout(30):
        while text not in (line := (await response.content.readline()).decode()):
            assert line, f"the stream ended without {text!r}"
    return line


async def test_the_role_goes_out_before_the_first_token(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    async with open_api(scripted, settings()) as client:
        response = await client.post(CHAT, json=STREAM)
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.headers["X-Request-Id"] == "id1"
        assert '"role": "assistant"' in await _line_with(response, "data:")
        say(scripted.streams[0], delta("a"), finished())
        assert "[DONE]" in await response.text()


async def test_long_silences_are_filled_with_comments(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    async with open_api(scripted, settings(), keep_alive=0.01) as client:
        response = await client.post(CHAT, json=STREAM)
        assert await _line_with(response, ":") != ""
        await _line_with(response, ": waiting")
        say(scripted.streams[0], PrefillProgress(512, 1500, 0))
        await _line_with(response, ": prefill 512/1500")
        say(scripted.streams[0], PrefillProgress(1024, 1500, 0))
        await _line_with(response, ": prefill 1024/1500")
        say(scripted.streams[0], delta("a"))
        await _line_with(response, '"content": "a"')
        await _line_with(response, ": waiting")
        say(scripted.streams[0], finished())
        assert parse_sse(await response.text())[-1] == "[DONE]"


async def test_no_comment_in_a_stream_that_is_not_silent(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    scripted.on_submit = lambda stream: say(
        stream, PrefillProgress(1, 2, 0), PrefillProgress(2, 2, 0), delta("a"), finished()
    )
    async with open_api(scripted, settings(), keep_alive=3600.0) as client:
        raw = await (await client.post(CHAT, json=STREAM)).text()
    assert not [line for line in raw.splitlines() if line.startswith(":")]


async def test_deltas_that_wait_together_go_out_as_one(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    scripted.on_submit = lambda stream: say(
        stream, delta("a"), delta(""), delta("b\u2028"), delta("c"), finished()
    )
    async with open_api(scripted, settings()) as client:
        raw = await (await client.post(CHAT, json={**STREAM, "n": 2})).text()
    assert raw.isascii()
    chunks = parse_sse(raw)
    assert [streamed_text(chunks, index) for index in (0, 1)] == ["ab\u2028c"] * 2
    # Two roles, two texts, two ends, and the mark.
    assert len(chunks) == 7


async def test_a_reader_that_stops_reading_holds_up_only_itself(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    pushes, size = 200, 100_000
    async with open_api(scripted, settings()) as client:
        slow = await client.post(CHAT, json=STREAM)
        await _line_with(slow, "assistant")
        stream = scripted.streams[0]
        for _ in range(pushes):
            say(stream, delta("x" * size))
            # Another client is served between any two of them.
            assert (await client.get("/livez")).status == 200
        say(stream, finished())
        chunks = parse_sse((await slow.text()).lstrip())
    assert len(streamed_text(chunks)) == pushes * size
    # What did not fit the connection went out together later.
    assert len(chunks) < pushes


async def test_a_token_sets_no_timer_and_writes_no_constant_anew(
    scripted: ScriptedEngine, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = 40
    async with open_api(scripted, settings(), keep_alive=3600.0) as client:
        response = await client.post(CHAT, json=STREAM)
        await _line_with(response, "assistant")
        stream = scripted.streams[0]
        loop = asyncio.get_running_loop()
        timers: list[float] = []
        dumped: list[Any] = []
        call_at, dumps = loop.call_at, json.dumps

        def set_timer(when: float, *arguments: Any, **named: Any) -> Any:
            if when > loop.time() + 3000:
                timers.append(when)
            return call_at(when, *arguments, **named)

        def dump(value: Any, **named: Any) -> str:
            dumped.append(value)
            return dumps(value, **named)

        monkeypatch.setattr(loop, "call_at", set_timer)
        monkeypatch.setattr("mlxceld.api.openai.chat.json.dumps", dump)
        for number in range(tokens):
            say(stream, delta(f"w{number} "))
            assert f'"w{number} "' in await _line_with(response, "content")
        monkeypatch.undo()
        say(stream, finished())
        await response.text()
    # Each token is an event of its own, and only its text is turned into JSON for it.
    assert dumped == [f"w{number} " for number in range(tokens)]
    assert timers == []


FORCED = [
    (Failed(FailureKind.ENGINE, "boom", Usage(5, 1, 0)), 500, "engine_fault", "boom"),
    (Failed(FailureKind.REQUEST, "odd", Usage(5, 1, 0)), 500, "request_fault", "odd"),
    (Failed(FailureKind.SHUTDOWN, "bye", Usage(5, 1, 0)), 503, "shutting_down", "bye"),
    (Finished(FinishReason.TIMEOUT, Usage(5, 1, 0)), 504, "timeout", "request_timeout, 600 s"),
    (Finished(FinishReason.CANCELLED, Usage(5, 1, 0)), 499, "request_cancelled", "cancelled"),
]


@pytest.mark.parametrize(("end", "status", "code", "message"), FORCED)
async def test_an_end_by_force_is_an_error_event(
    scripted: ScriptedEngine,
    settings: MakeSettings,
    end: Any,
    status: int,
    code: str,
    message: str,
) -> None:
    scripted.on_submit = lambda stream: say(stream, delta("part"), end)
    async with open_api(scripted, settings()) as client:
        chunks = await read_sse(await client.post(CHAT, json=STREAM))
        assert streamed_text(chunks[:-1]) == "part"
        assert chunks[-1]["error"]["code"] == code
        assert message in chunks[-1]["error"]["message"]
        error = await error_of(await client.post(CHAT, json=WHOLE), status)
        assert error == chunks[-1]["error"]


@pytest.mark.parametrize("body", [STREAM, WHOLE])
async def test_one_choice_that_fails_ends_the_others(
    scripted: ScriptedEngine, settings: MakeSettings, body: dict[str, Any]
) -> None:
    async with open_api(scripted, settings()) as client:
        ends = iter([None, Failed(FailureKind.REQUEST, "odd", Usage(5, 0, 0)), None])
        scripted.on_submit = lambda stream: say(stream, *filter(None, [next(ends)]))
        response = await client.post(CHAT, json={**body, "n": 3})
        assert "request_fault" in await response.text()
    assert scripted.cancelled == ["id1-0", "id1-2"]


async def test_a_fault_of_the_handler_is_told_without_its_text(
    scripted: ScriptedEngine, settings: MakeSettings, caplog: pytest.LogCaptureFixture
) -> None:
    scripted.on_submit = lambda stream: say(stream, delta("a"), "nonsense")  # type: ignore[arg-type]
    async with open_api(scripted, settings()) as client:
        chunks = await read_sse(await client.post(CHAT, json=STREAM))
    assert chunks[-1]["error"]["code"] == "internal_error"
    assert "str" not in chunks[-1]["error"]["message"]
    assert "Traceback" in caplog.text
    assert scripted.cancelled == ["id1"]


@pytest.mark.parametrize("body", [STREAM, WHOLE, {**STREAM, "n": 2}, {**WHOLE, "n": 2}])
async def test_a_client_that_leaves_is_cancelled(
    scripted: ScriptedEngine, settings: MakeSettings, until: Until, body: dict[str, Any]
) -> None:
    async with open_api(scripted, settings()) as client:
        asked = asyncio.ensure_future(client.post(CHAT, json=body))
        await until(lambda: len(scripted.streams) == body.get("n", 1))
        assert scripted.cancelled == []
        if body["stream"]:
            (await asked).close()
        else:
            asked.cancel()
        await until(lambda: len(scripted.cancelled) == body.get("n", 1))
    assert scripted.cancelled == [stream.request_id for stream in scripted.streams]


async def test_a_client_that_leaves_amid_tokens_is_cancelled(
    scripted: ScriptedEngine, settings: MakeSettings, until: Until
) -> None:
    async with open_api(scripted, settings()) as client:
        reader, writer = await asyncio.open_connection(client.host, client.port)
        body = b'{"prompt": "x", "stream": true}'
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        await until(lambda: scripted.streams)
        say(scripted.streams[0], delta("a"))
        assert b"200 OK" in await reader.readline()
        # A reset, as of a process that was killed.
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        await until(lambda: scripted.cancelled)


async def test_a_finished_request_is_not_cancelled(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    scripted.on_submit = lambda stream: say(stream, finished())
    async with open_api(scripted, settings()) as client:
        for body in (STREAM, WHOLE, {**STREAM, "n": 2}, {**WHOLE, "n": 2}):
            assert (await client.post(CHAT, json=body)).status == 200
    assert scripted.cancelled == []


@pytest.mark.parametrize("stream", [True, False])
async def test_clients_that_leave_free_the_engine(
    engine: Engine, settings: MakeSettings, until: Until, stream: bool
) -> None:
    async with open_api(engine, settings()) as client:
        body = {
            "prompt": "endless",
            "max_tokens": 500,
            "ignore_eos": True,
            "stream": stream,
            "n": 2,
        }
        asked = [asyncio.ensure_future(client.post("/v1/completions", json=body)) for _ in range(8)]
        await until(lambda: engine.status.running)
        for task in asked:
            if stream:
                (await task).close()
            else:
                task.cancel()
        await until(lambda: not engine.status.running and not engine.status.waiting)
        answer = await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
        assert answer.status == 200
    assert ("completions", "cancelled") in engine.status.outcomes
