"""The live trace over HTTP: what comes, what a reader that does not read misses, how it ends."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from admin_harness import CacheEngine, prompts_over, resolved_settings
from mlxceld.admin.app import PREFIX, create_admin_app
from mlxceld.prompt_cache.trace_feed import FEED_EVENTS


def _server(engine: CacheEngine) -> TestServer:
    return TestServer(
        create_admin_app(
            engine,
            prompts_over(engine, resolved_settings()),
            resolved_settings(),
            drain=engine.drain,
        )
    )


async def _next(response: ClientResponse) -> tuple[str, Any]:
    name, data = "", None
    while line := (await response.content.readline()).decode().rstrip("\n"):
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            data = json.loads(value)
    return name, data


async def test_a_stream_begins_with_the_last_events_and_the_switch() -> None:
    engine = CacheEngine()
    for length in range(2, 5):
        engine.put([0] * length)
    async with TestClient(_server(engine)) as client:
        response = await client.get(f"{PREFIX}/trace/stream?n=2")
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        assert response.headers["X-Request-Id"]
        opening = [await _next(response) for _ in range(3)]
        assert [data.get("context_len") for _, data in opening] == [3, 4, None]
        assert opening[2] == ("trace", {"enabled": False})
        engine.put([1] * 9)
        engine.set_trace(True)
        engine.put([1] * 10)
        assert await _next(response) == ("trace", {"enabled": True})
        name, event = await _next(response)
        assert (name, event["event"], event["context_len"]) == ("", "store", 10)
        # The same object that GET trace gives.
        tail = await (await client.get(f"{PREFIX}/trace?n=1")).json()
        assert tail["events"] == [event]
        response.close()


async def test_a_reader_that_never_reads_slows_nobody_and_is_told_what_it_missed() -> None:
    engine = CacheEngine()
    engine.set_trace(True)
    server = _server(engine)
    async with TestClient(server) as client:
        reader, writer = await asyncio.open_connection(server.host, server.port, limit=1 << 12)
        writer.write(f"GET {PREFIX}/trace/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        # As far as its headers: then it is subscribed.
        await reader.readuntil(b"\r\n\r\n")
        sent = 0
        while not engine.trace.dropped:
            for _ in range(FEED_EVENTS):
                engine.trace.emit("store", session="s" * 10, context_len=sent, store="kv")
                sent += 1
            # Another client is served between two batches.
            assert (await client.get(f"{PREFIX}/status")).status == 200
            assert sent < 2_000_000, "the feed is not bounded"
        missed = engine.trace.dropped
        text = ""
        while (told := re.search(r"event: dropped\ndata: (.*)\n\n", text)) is None:
            text += (await reader.read(1 << 16)).decode()
        assert 0 < json.loads(told.group(1))["count"] <= missed
        writer.close()


async def test_a_bad_length_is_refused_in_the_apis_shape() -> None:
    async with TestClient(_server(CacheEngine())) as client:
        response = await client.get(f"{PREFIX}/trace/stream?n=many")
        assert response.status == 400
        assert (await response.json())["error"]["details"]["field"] == "n"


async def test_streams_end_with_the_application() -> None:
    engine = CacheEngine()
    client = TestClient(_server(engine))
    await client.start_server()
    response = await client.get(f"{PREFIX}/trace/stream")
    await _next(response)
    closing = asyncio.create_task(client.server.close())
    rest = await response.content.read()
    assert rest.endswith(b"\n\n")
    await closing
    assert engine.trace._feeds == ()
    await client.close()
