"""Malformed bodies by the hundred: never a 5xx, always the envelope, and the engine serves on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from api_harness import open_api
from mlxceld.config import Settings
from mlxceld.engine.engine import Engine

MakeSettings = Callable[..., Settings]
Post = Callable[[str, bytes], tuple[int, bytes]]

VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": []}}}],
        "tool_choice": "auto",
        "chat_template_kwargs": {"enable_thinking": False},
        "logprobs": True,
        "top_logprobs": 1,
        "max_tokens": 2,
    },
    "/v1/completions": {
        "prompt": [[1, 2], [3]],
        "logprobs": 2,
        "max_tokens": 2,
        "stop": ["x"],
        "logit_bias": {"5": 1},
        "stream_options": {"include_usage": True},
    },
    "/tokenize": {"content": "abc", "add_special": True},
    "/detokenize": {"tokens": [1, 2, 3]},
}
FIELDS = sorted(
    {name for body in VALID.values() for name in body}
    | {"temperature", "top_p", "top_k", "min_p", "seed", "n", "stream", "user", "best_of", "model"}
    | {"extra_body", "response_format", "repetition_penalty", "max_completion_tokens", "echo"}
)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.just(10**30),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=5),
    st.sampled_from(["user", "tool", "text", "function", "\ud800", "\x00", "json_object"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.text(max_size=4), st.sampled_from(FIELDS)), inner, max_size=3),
    ),
    max_leaves=6,
)


def _places(value: Any) -> list[tuple[Any, ...]]:
    """The path of everything inside a JSON value."""
    items = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else []
    )
    return [path for key, inner in items for path in ((key,), *((key, *p) for p in _places(inner)))]


def _changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _changed(copy[path[0]], path[1:], new)
    return copy


@pytest.fixture
def post(engine: Engine, settings: MakeSettings) -> Iterator[Post]:
    """Posts to an application whose event loop runs between the examples."""
    with asyncio.Runner() as runner:
        opened = open_api(engine, settings())
        client = runner.run(opened.__aenter__())

        def send(path: str, body: bytes) -> tuple[int, bytes]:
            async def ask() -> tuple[int, bytes]:
                async with asyncio.timeout(60), client.post(path, data=body) as response:
                    return response.status, await response.read()

            return runner.run(ask())

        yield send
        # The engine and the API are as good as new.
        status, raw = send("/v1/completions", b'{"prompt": "ok", "max_tokens": 3}')
        assert status == 200, raw
        runner.run(opened.__aexit__(None, None, None))


def _check(status: int, raw: bytes, body: bytes) -> None:
    assert status < 500, (body, raw)
    if status >= 400:
        error = json.loads(raw)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert 0 < len(error["message"]) < 1000, (body, raw)


many = hypothesis_settings(
    max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@many
@given(data=st.data())
def test_one_value_changed(post: Post, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(VALID)))
    good = VALID[path]
    if data.draw(st.booleans()):
        place = data.draw(st.sampled_from(_places(good)))
        body = _changed(good, place, data.draw(values))
    else:
        body = {**good, data.draw(st.sampled_from(FIELDS)): data.draw(values)}
    raw = json.dumps(body).encode()
    _check(*post(path, raw), raw)


@many
@given(data=st.data())
def test_bytes_changed(post: Post, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(VALID)))
    raw = bytearray(json.dumps(VALID[path]).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(0, len(raw) - 1)))
        raw[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    _check(*post(path, bytes(raw)), bytes(raw))


@many
@given(body=st.one_of(st.binary(max_size=50), values.map(lambda v: json.dumps(v).encode())))
def test_anything_at_all(post: Post, body: bytes) -> None:
    for path in VALID:
        _check(*post(path, body), body)
