"""The admin socket is bound anew where its file has gone."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from mlxceld.admin.errors import error_response
from mlxceld.admin.listening import CHECK_SECONDS, AdminListener
from mlxceld.admin.socket import AdminSocket
from mlxceld.web.runner import Runner


class Life:
    """A listener whose time is a test's to pass."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "run" / "admin.sock"
        self.slept: list[float] = []
        self.turn = asyncio.Semaphore(0)
        self.looked = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.looked.set()
        await self.turn.acquire()

    async def pass_time(self) -> None:
        """Let one check happen."""
        self.looked.clear()
        self.turn.release()
        await self.looked.wait()

    async def ask(self) -> bytes:
        reader, writer = await asyncio.open_unix_connection(str(self.path))
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer


@pytest.fixture
async def life() -> AsyncIterator[Life]:
    with tempfile.TemporaryDirectory(prefix="mx") as name:
        made = Life(Path(name))
        app = web.Application()

        async def get(request: web.Request) -> web.Response:
            return web.json_response({"fine": True})

        app.router.add_get("/", get)
        runner = Runner(app, error_response, access_log=None)
        await runner.setup()
        with AdminSocket(made.path) as admin:
            listener = AdminListener(runner, admin, sleep=made.sleep)
            await listener.start()
            keeping = asyncio.create_task(listener.keep())
            await made.looked.wait()
            yield made
            keeping.cancel()
            await runner.cleanup()


async def test_a_socket_that_is_there_is_left_alone(life: Life) -> None:
    before = life.path.stat().st_ino
    await life.pass_time()
    assert life.path.stat().st_ino == before
    assert b"200 OK" in await life.ask()
    assert life.slept == [CHECK_SECONDS] * 2
    assert CHECK_SECONDS <= 60


@pytest.mark.parametrize("what", ["socket", "folder", "dead socket in its place"])
async def test_a_socket_that_has_gone_is_bound_anew(
    life: Life, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    if what == "folder":
        shutil.rmtree(life.path.parent)
    else:
        life.path.unlink()
    if what.startswith("dead"):
        left = socket.socket(socket.AF_UNIX)
        left.bind(str(life.path))
        left.close()
    with pytest.raises((FileNotFoundError, ConnectionRefusedError)):
        await life.ask()
    await life.pass_time()
    assert b"200 OK" in await life.ask()
    assert life.path.stat().st_mode & 0o777 == 0o600
    assert len(caplog.records) == 1
    await life.pass_time()
    assert b"200 OK" in await life.ask()
    assert len(caplog.records) == 1


async def test_what_cannot_be_bound_is_said_once_and_tried_again(
    life: Life, caplog: pytest.LogCaptureFixture
) -> None:
    life.path.unlink()
    life.path.write_text("precious")
    await life.pass_time()
    await life.pass_time()
    assert [record.getMessage().count("is not a socket") for record in caplog.records] == [1]
    assert life.path.read_text() == "precious"
    life.path.unlink()
    await life.pass_time()
    assert b"200 OK" in await life.ask()


async def test_the_socket_of_a_later_daemon_is_spared(life: Life) -> None:
    life.path.unlink()
    with AdminSocket(life.path):
        before = life.path.stat().st_ino
        await life.pass_time()
        assert life.path.stat().st_ino == before
