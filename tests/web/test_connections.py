"""Connections leave files for the rest of the daemon."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest
from aiohttp import web

from mlxceld.api.errors import refusal
from mlxceld.process.listener import Listener, file_ceiling, listen
from mlxceld.web.connections import Connections
from mlxceld.web.runner import SILENT_SECONDS, Runner


class Told:
    """A connection that notes that it was closed."""

    def __init__(self, *, silent: bool) -> None:
        self.silent = silent
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_below_the_ceiling_nothing_is_closed() -> None:
    connections = Connections(lambda: 10)
    one = Told(silent=True)
    connections.add(one, 8)
    assert connections.admit(9)
    assert connections.settled
    assert not one.aborted


def test_at_the_ceiling_the_oldest_silent_connection_makes_room() -> None:
    connections = Connections(lambda: 10)
    busy, first, second = Told(silent=False), Told(silent=True), Told(silent=True)
    for number, one in enumerate((busy, first, second)):
        connections.add(one, 7 + number)
    assert connections.admit(10)
    assert [one.aborted for one in (busy, first, second)] == [False, True, False]
    # Its file is only free when it has gone.
    assert not connections.settled
    connections.discard(first)
    assert connections.settled
    # One is above now, so that the freed number below is no more room than before.
    third = Told(silent=True)
    connections.add(third, 10)
    assert connections.admit(8)
    assert second.aborted
    connections.discard(second)
    connections.discard(third)
    assert connections.admit(9)
    assert not busy.aborted


def test_where_all_are_busy_the_new_one_goes(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    connections = Connections(lambda: 10, lambda: now[0])
    connections.add(Told(silent=False), 9)
    assert not connections.admit(10)
    assert not connections.admit(11)
    assert len(caplog.records) == 1
    now[0] = 11.0
    assert not connections.admit(10)
    assert len(caplog.records) == 2


def test_a_listener_turns_away_what_its_gate_does_not_admit() -> None:
    (listener,) = listen("127.0.0.1", 0)
    with listener, socket.create_connection(listener.getsockname()) as client:
        listener.setblocking(True)
        gate = Connections(lambda: 0)
        listener.gate = gate
        with pytest.raises(ConnectionAbortedError):
            listener.accept()
        client.settimeout(30)
        assert client.recv(1) == b""
        one = Told(silent=True)
        gate.add(one, 9)
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            accepted.close()
            assert one.aborted
            with pytest.raises(BlockingIOError):
                listener.accept()


def test_a_quarter_of_few_files_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, ceiling in ((64, 48), (256, 192), (8192, 8128)):
        monkeypatch.setattr("resource.getrlimit", lambda _, soft=soft: (soft, soft))
        assert file_ceiling() == ceiling


class Serving:
    """A runner over one route, on a listener with as many places as a test says."""

    def __init__(self) -> None:
        self.places = 1 << 30
        self.release = asyncio.Event()
        self.busy = asyncio.Event()
        self.connections = Connections(lambda: self.places)

    async def __aenter__(self) -> Serving:
        app = web.Application()

        async def slow(request: web.Request) -> web.Response:
            await request.read()
            self.busy.set()
            await self.release.wait()
            return web.Response(text="done")

        app.router.add_post("/", slow)
        self.runner = Runner(
            app,
            refusal,
            connections=self.connections,
            access_log=None,
            keepalive_timeout=75.0,
            shutdown_timeout=0.1,
        )
        await self.runner.setup()
        (self.listener,) = listen("127.0.0.1", 0)
        assert isinstance(self.listener, Listener)
        self.listener.gate = self.connections
        await web.SockSite(self.runner, self.listener).start()
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.release.set()
        await self.runner.cleanup()

    async def connect(self, raw: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.listener.getsockname())
        writer.write(raw)
        return reader, writer

    def fill(self) -> None:
        """Let the next connection find no place."""
        places = os.dup(0)
        os.close(places)
        self.places = places


WHOLE = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"POST / HTTP/1.1\r\nHo",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n{",
    ],
    ids=["nothing", "half a header", "half a body"],
)
async def test_what_was_sent_in_part_makes_room_for_a_request(raw: bytes) -> None:
    async with Serving() as serving:
        running, running_writer = await serving.connect(WHOLE)
        await serving.busy.wait()
        silent, silent_writer = await serving.connect(raw)
        handled = 1 + raw.endswith(b"{")
        while (
            len(serving.runner.server.connections) < 2
            or sum(one._request_in_progress for one in serving.runner.server.connections) < handled
        ):
            await asyncio.sleep(0)
        serving.fill()
        serving.busy.clear()
        new, new_writer = await serving.connect(WHOLE)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await silent.readexactly(1)
        await serving.busy.wait()
        serving.release.set()
        for reader in (running, new):
            assert (await reader.readline()).split()[1] == b"200"
        for writer in (running_writer, silent_writer, new_writer):
            writer.close()


async def test_a_new_connection_has_a_minute_for_its_first_header() -> None:
    async with Serving() as serving:
        _, writer = await serving.connect(b"POST / HTTP/1.1\r\nHo")
        while not serving.runner.server.connections:
            await asyncio.sleep(0)
        (protocol,) = serving.runner.server.connections
        due = protocol._keepalive_handle.when() - asyncio.get_running_loop().time()
        assert SILENT_SECONDS - 30 < due <= SILENT_SECONDS
        # What goes off then closes it, half a header or not.
        protocol._next_keepalive_close_time = 0.0
        protocol._process_keepalive()
        while serving.runner.server.connections:
            await asyncio.sleep(0)
        writer.close()
