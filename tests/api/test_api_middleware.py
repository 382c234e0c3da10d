"""Ids, errors, keys, hosts and limits, as every route has them."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api_harness import ScriptedEngine, error_of, open_api
from mlxceld.api.keys import ApiKeys
from mlxceld.config import Settings
from mlxceld.engine.errors import NotReadyError, QueueFullError
from mlxceld.telemetry.status import EngineState, EngineStatus

MakeSettings = Callable[..., Settings]
CHAT = "/v1/chat/completions"
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def keys(tmp_path: Path) -> ApiKeys:
    file = tmp_path / "keys"
    file.write_text("laptop: sk-one\nphone: sk-two\n")
    file.chmod(0o600)
    return ApiKeys(file)


async def test_every_response_carries_the_requests_id(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    async with open_api(scripted, settings()) as client:
        for path, status in (("/livez", 200), ("/v1/models", 200), ("/nowhere", 404)):
            given = await client.get(path, headers={"X-Request-Id": "mine-1"})
            assert (given.status, given.headers["X-Request-Id"]) == (status, "mine-1")
        assert (await client.get("/livez")).headers["X-Request-Id"] == "id1"
        for odd in ("with space", "x" * 129, "é"):
            got = await client.get("/livez", headers={"X-Request-Id": odd})
            assert got.headers["X-Request-Id"].startswith("id")


async def test_unknown_routes_and_methods_get_the_envelope(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    async with open_api(scripted, settings()) as client:
        error = await error_of(await client.post("/v1/embeddings", json={"input": "x"}), 404)
        assert error["code"] == "unknown_url"
        assert "POST /v1/embeddings" in error["message"]
        response = await client.get(CHAT)
        error = await error_of(response, 405)
        assert response.headers["Allow"] == "POST"
        assert "use POST" in error["message"]
        response = await client.delete("/v1/models")
        await error_of(response, 405)
        assert response.headers["Allow"] == "GET, HEAD"


async def test_a_body_over_the_limit_is_413(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    async with open_api(scripted, settings(max_body=2048)) as client:
        error = await error_of(await client.post(CHAT, data=b"x" * 2049), 413)
        assert error["message"] == "the body is larger than max_body, 2048 bytes"

        async def parts() -> Any:
            for _ in range(64):
                yield b" " * 1024

        error = await error_of(await client.post(CHAT, data=parts()), 413)
        packed = gzip.compress(b" " * 100_000)
        headers = {"Content-Encoding": "gzip"}
        await error_of(await client.post(CHAT, data=packed, headers=headers), 413)
        await error_of(await client.post(CHAT, data=b" " * 2048), 400)


async def test_a_body_that_is_announced_too_large_is_not_waited_for(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    async with open_api(scripted, settings(max_body=2048)) as client:
        reader, writer = await asyncio.open_connection(client.host, client.port)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2049\r\n\r\n"
        writer.write(head.encode())
        async with asyncio.timeout(30):
            status = await reader.readline()
        assert status.startswith(b"HTTP/1.1 413 ")
        writer.close()


async def test_a_body_that_cannot_be_unpacked_is_400(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    async with open_api(scripted, settings()) as client:
        response = await client.post(
            CHAT, data=b"no gzip at all", headers={"Content-Encoding": "gzip"}
        )
        assert response.status == 400, await response.text()


async def test_a_large_body_is_parsed_too(scripted: ScriptedEngine, settings: MakeSettings) -> None:
    async with open_api(scripted, settings()) as client:
        body = json.dumps({"messages": [], "padding": "x" * 1_000_000})
        error = await error_of(await client.post(CHAT, data=body), 400)
        assert error["param"] == "messages"


async def test_a_body_of_too_many_values_is_refused_before_it_has_arrived(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    message = json.dumps({"role": "user", "content": "hi"}).encode()
    begun = b'{"messages": [' + (message + b",") * 60_000
    async with open_api(scripted, settings()) as client:
        reader, writer = await asyncio.open_connection(client.host, client.port)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\n"
        writer.write(head.encode() + begun)
        async with asyncio.timeout(30):
            status = await reader.readline()
            answer = await reader.readuntil(b"}}")
        assert status.startswith(b"HTTP/1.1 400 ")
        assert b"too_many_values" in answer
        assert b"JSON values, which is more than a request to this model can use" in answer
        writer.close()
        # A conversation of many turns is taken.
        history = {"messages": [{"role": "user", "content": "hi " * 30}] * 5_000, "stop": 1}
        error = await error_of(await client.post(CHAT, json=history), 400)
        assert error["param"] == "stop"


async def test_a_refused_body_is_let_go_of_at_once(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    async with open_api(scripted, settings()) as client:
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                body = json.dumps({"messages": [], "padding": [0] * 20_001})
                await error_of(await client.post(CHAT, data=body), 400)
            left = sum(type(one) is list and len(one) == 20_001 for one in gc.get_objects())
        finally:
            gc.enable()
    assert left == 0


async def test_keys_are_asked_for_everywhere_but_on_the_health_routes(
    scripted: ScriptedEngine, settings: MakeSettings, keys: ApiKeys
) -> None:
    async with open_api(scripted, settings(), keys) as client:
        for path in ("/livez", "/readyz", "/health"):
            assert (await client.get(path)).status == 200
        for path in ("/v1/models", "/metrics", "/v1/cache/stats", "/nowhere", "/livez/"):
            response = await client.get(path)
            error = await error_of(response, 401)
            assert error["code"] == "invalid_api_key"
            assert "no API key was given" in error["message"]
            assert response.headers["WWW-Authenticate"] == "Bearer"
        for path in (CHAT, "/v1/completions", "/tokenize", "/detokenize"):
            await error_of(await client.post(path, json=HI), 401)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer sk-one"}, 200),
        ({"authorization": "bearer  sk-two"}, 200),
        ({"x-api-key": "sk-two"}, 200),
        ({"Authorization": "Basic abc", "x-api-key": "sk-two"}, 200),
        ({"Authorization": "Bearer sk-three"}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "sk-one"}, 401),
        ({"Authorization": "Bearer schlüssel"}, 401),
        ({"x-api-key": "\udcff"}, 401),
    ],
)
async def test_keys_come_in_either_header(
    scripted: ScriptedEngine,
    settings: MakeSettings,
    keys: ApiKeys,
    headers: dict[str, str],
    status: int,
) -> None:
    async with open_api(scripted, settings(), keys) as client:
        reader, writer = await asyncio.open_connection(client.host, client.port)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        request = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}\r\n"
        writer.write(request.encode("utf-8", "surrogateescape"))
        answer = await reader.read()
        writer.close()
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"sk-" not in answer


async def test_the_keys_name_is_the_client_of_a_request(
    scripted: ScriptedEngine, settings: MakeSettings, keys: ApiKeys
) -> None:
    scripted.refusal = None
    async with open_api(scripted, settings(), keys) as client:
        post = asyncio.create_task(
            client.post(CHAT, json=HI, headers={"Authorization": "Bearer sk-two"})
        )
        while not scripted.requests:
            await asyncio.sleep(0)
        assert scripted.requests[0].client == "phone"
        post.cancel()


async def test_on_loopback_a_foreign_host_is_refused_before_all_else(
    scripted: ScriptedEngine, settings: MakeSettings, keys: ApiKeys
) -> None:
    async with open_api(scripted, settings(), keys) as client:
        error = await error_of(await client.get("/livez", headers={"Host": "evil.example"}), 403)
        assert error["code"] == "host_not_allowed"
        assert "allowed_hosts" in error["message"]
    async with open_api(scripted, settings(host="0.0.0.0")) as client:
        assert (await client.get("/livez", headers={"Host": "box.example"})).status == 200


async def test_a_page_of_another_origin_may_not_post(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    page = {"Origin": "https://evil.example", "Content-Type": "text/plain"}
    async with open_api(scripted, settings()) as client:
        response = await client.post(CHAT, data=json.dumps(HI), headers=page)
        error = await error_of(response, 403)
        assert error["code"] == "origin_not_allowed"
        assert "Access-Control-Allow-Origin" not in response.headers
        assert not scripted.requests


async def test_pages_of_an_allowed_origin_are_answered(
    scripted: ScriptedEngine, settings: MakeSettings, keys: ApiKeys
) -> None:
    origin = {"Origin": "https://ui.example"}
    chosen = settings(cors_origins=("https://ui.example",))
    async with open_api(scripted, chosen, keys) as client:
        preflight = await client.options(
            CHAT,
            headers={
                **origin,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization, content-type",
            },
        )
        assert preflight.status == 204
        assert preflight.headers["Access-Control-Allow-Origin"] == "https://ui.example"
        assert preflight.headers["Access-Control-Allow-Headers"] == "authorization, content-type"
        assert preflight.headers["Access-Control-Allow-Methods"] == "OPTIONS, POST"
        preflight = await client.options(
            "/v1/responses/resp_1", headers={**origin, "Access-Control-Request-Method": "DELETE"}
        )
        assert preflight.status == 204
        assert "DELETE" in preflight.headers["Access-Control-Allow-Methods"]
        # The page may read errors too.
        response = await client.post(CHAT, json=HI, headers=origin)
        await error_of(response, 401)
        assert response.headers["Access-Control-Allow-Origin"] == "https://ui.example"
        assert "X-Request-Id" in response.headers["Access-Control-Expose-Headers"]


@pytest.mark.parametrize("origins", [(), ("https://ui.example",)])
async def test_a_refused_preflight_names_the_setting(
    scripted: ScriptedEngine, settings: MakeSettings, origins: tuple[str, ...], caplog: Any
) -> None:
    caplog.set_level("INFO", logger="mlxceld.request")
    asked = {"Origin": "https://other.example", "Access-Control-Request-Method": "POST"}
    async with open_api(scripted, settings(cors_origins=origins)) as client:
        error = await error_of(await client.options(CHAT, headers=asked), 403)
    assert error["code"] == "origin_not_allowed"
    assert "https://other.example" in error["message"]
    assert "cors_origins" in error["message"]
    (line,) = [record for record in caplog.records if record.name == "mlxceld.request"]
    assert line.fields["code"] == "origin_not_allowed"
    assert line.fields["route"] == f"OPTIONS {CHAT}"


async def test_options_that_are_no_preflight_are_405(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    async with open_api(scripted, settings()) as client:
        await error_of(await client.options(CHAT, headers={"Origin": "https://a.example"}), 405)


async def test_the_engines_refusals_have_their_status(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    async with open_api(scripted, settings()) as client:
        scripted.refusal = QueueFullError(64, 64, 7)
        response = await client.post(CHAT, json=HI)
        error = await error_of(response, 429)
        assert response.headers["Retry-After"] == "7"
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
        scripted.refusal = NotReadyError("the engine is draining")
        response = await client.post(CHAT, json=HI)
        error = await error_of(response, 503)
        assert response.headers["Retry-After"]
        assert error["message"] == "the engine is draining"


async def test_until_the_model_is_loaded_all_is_503_with_the_reason(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    class Loading(ScriptedEngine):
        @property
        def text(self) -> Any:
            raise NotReadyError("loading")

        @text.setter
        def text(self, value: Any) -> None:
            pass

    snapshot = EngineStatus(state=EngineState.LOADING, detail="weights 3/5")
    async with open_api(Loading(scripted.text, snapshot), settings()) as client:
        for call in (
            client.get("/v1/models"),
            client.get("/v1/models/llama"),
            client.post(CHAT, json=HI),
            client.post("/v1/completions", json={"prompt": "x"}),
            client.post("/tokenize", json={"content": "x"}),
            client.post("/detokenize", json={"tokens": [1]}),
        ):
            response = await call
            error = await error_of(response, 503)
            assert error["message"] == "the engine is loading: weights 3/5"
            assert response.headers["Retry-After"]
        assert (await client.get("/v1/cache/stats")).status == 200
        assert (await client.get("/metrics")).status == 200


async def test_what_nobody_foresaw_is_a_500_that_tells_nothing(
    scripted: ScriptedEngine, settings: MakeSettings, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(accept: str) -> tuple[bytes, str]:
        raise RuntimeError("the secret of " + accept)

    async with open_api(scripted, settings(), metrics_text=broken) as client:
        error = await error_of(await client.get("/metrics"), 500)
    assert error["type"] == "server_error"
    assert "secret" not in error["message"]
    assert "the secret of" in caplog.text
