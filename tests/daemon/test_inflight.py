"""A request runs from its last byte to its answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from mlxceld.inflight import InFlight


class Held:
    """An application whose handler reads its request and then waits."""

    def __init__(self) -> None:
        self.in_flight = InFlight()
        self.entered = asyncio.Event()
        self.release = asyncio.Event()
        app = web.Application(middlewares=[self.in_flight.middleware])
        app.router.add_route("*", "/", self.handle)
        self.client: TestClient[Any, Any] = TestClient(TestServer(app))

    async def handle(self, request: web.Request) -> web.Response:
        self.entered.set()
        await request.read()
        await self.release.wait()
        return web.Response(text="done")


@pytest.fixture
async def held() -> Any:
    made = Held()
    async with made.client:
        yield made
        made.release.set()


@pytest.mark.parametrize("body", [None, b"whole"])
async def test_a_whole_request_runs_until_it_is_answered(held: Held, body: bytes | None) -> None:
    assert held.in_flight.count == 0
    answer = asyncio.create_task(held.client.post("/", data=body))
    await held.entered.wait()
    while not held.in_flight.count:
        await asyncio.sleep(0)
    assert held.in_flight.drop_arriving() == 0
    held.release.set()
    assert (await answer).status == 200
    await held.in_flight.over()
    assert held.in_flight.count == 0


async def test_a_request_of_which_a_part_is_missing_does_not_run(held: Held) -> None:
    reader, writer = await asyncio.open_connection(held.client.host, held.client.port)
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
    await held.entered.wait()
    assert held.in_flight.count == 0
    await held.in_flight.over()
    writer.write(b" more")
    while not held.in_flight.count:
        await asyncio.sleep(0)
    held.release.set()
    assert (await reader.readline()).split()[1] == b"200"
    await held.in_flight.over()
    writer.close()


async def test_what_has_not_come_whole_is_dropped(held: Held) -> None:
    reader, writer = await asyncio.open_connection(held.client.host, held.client.port)
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
    await held.entered.wait()
    assert held.in_flight.drop_arriving() == 1
    assert await reader.read() == b""
    writer.close()
