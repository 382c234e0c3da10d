"""What is no HTTP gets an answer in the application's shape."""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

from mlxceld.admin.errors import error_response
from mlxceld.api.errors import refusal
from mlxceld.web.runner import Envelope, Runner


async def answer_to(raw: bytes, envelope: Envelope) -> tuple[str, dict[str, str], bytes]:
    app = web.Application()

    async def get(request: web.Request) -> web.Response:
        return web.json_response({"fine": True})

    app.router.add_get("/", get)
    runner = Runner(app, envelope, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw)
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
        writer.close()
        return first, headers, body
    finally:
        await runner.cleanup()


async def test_nonsense_is_refused_in_the_shape_of_the_public_api(caplog) -> None:
    first, headers, body = await answer_to(b"\x16\x03\x01 hello\r\n\r\n", refusal)
    assert first.split()[1] == "400"
    error = json.loads(body)["error"]
    assert error["type"] == "invalid_request_error"
    assert "not valid HTTP" in error["message"]
    assert len(headers["x-request-id"]) == 32


async def test_nonsense_is_refused_in_the_shape_of_the_admin_api() -> None:
    first, headers, body = await answer_to(b"GET / HTTP/1.1\r\nbad header\r\n\r\n", error_response)
    assert first.split()[1] == "400"
    assert json.loads(body)["error"]["code"] == "invalid_request"
    assert headers["content-type"].startswith("application/json")


async def test_what_is_http_reaches_the_application() -> None:
    first, _, body = await answer_to(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", refusal)
    assert first.split()[1] == "200"
    assert json.loads(body) == {"fine": True}
