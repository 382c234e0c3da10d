"""What is no HTTP gets an answer in the application's shape."""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

from mlxceld.admin.errors import error_response
from mlxceld.api.errors import refusal
from mlxceld.web.runner import Envelope, RefusalListener, Runner


async def answer_to(
    raw: bytes, envelope: Envelope, refused: RefusalListener | None = None
) -> tuple[str, dict[str, str], bytes]:
    app = web.Application()

    async def get(request: web.Request) -> web.Response:
        return web.json_response({"fine": True})

    app.router.add_get("/", get)
    runner = Runner(app, envelope, refused=refused, access_log=None)
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


async def test_an_expectation_that_is_not_known_is_refused_in_shape() -> None:
    raw = b"GET / HTTP/1.1\r\nHost: localhost\r\nExpect: 200-ok\r\n\r\n"
    first, headers, body = await answer_to(raw, refusal)
    assert first.split()[1] == "417"
    error = json.loads(body)["error"]
    assert error["code"] == "unsupported_expectation"
    assert "'200-ok', expected 100-continue" in error["message"]
    assert headers["content-type"].startswith("application/json")


async def test_a_refusal_before_the_application_is_told_to_who_listens(caplog) -> None:
    told = []

    def refused(request: web.BaseRequest, status: int, code: str, *, reason: str) -> None:
        told.append((status, code, reason))

    raw = b"GET / HTTP/1.1\r\nHost: localhost\r\nExpect: 200-ok\r\n\r\n"
    await answer_to(b"\x16\x03\x01 hello\r\n\r\n", refusal, refused)
    await answer_to(raw, refusal, refused)
    (bad, bad_code, reason), (expected, expected_code, text) = told
    assert (bad, bad_code) == (400, "bad_request")
    assert reason
    assert (expected, expected_code) == (417, "unsupported_expectation")
    assert "200-ok" in text
    assert not caplog.records
