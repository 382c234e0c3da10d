"""A request's body: from bytes to a JSON object, or an error that says what is wrong with it."""

from __future__ import annotations

import asyncio
import json
import math
import re
from codecs import BOM_UTF8
from typing import Any, NoReturn

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from mlxceld.api.context import CONTEXT
from mlxceld.api.errors import invalid
from mlxceld.api.large_json import parse_in_slices
from mlxceld.api.time_limit import within_time
from mlxceld.api.value_count import TooManyValuesError, ValueCounter

_DEPTH_LIMIT = 64
"""Deeper than any tool's schema; templates and JSON writers recurse, so this is no formality."""

_INLINE_BYTES = 64 * 1024
"""A larger body is parsed beside the event loop, and so that it holds up no other thread."""

_LEAST_VALUES_LIMIT = 65_536
_VALUES_PER_TOKEN = 4
_MOST_VALUES_LIMIT = 2**20

_LARGE_BYTES = 1024 * 1024
"""A body of this size leaves so much behind that it is worth giving back."""

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_SLICE = 256 * 1024

LARGE: web.RequestKey[bool] = web.RequestKey("large", bool)
"""Set on requests whose memory is given back afterwards."""


async def read_object(request: web.Request) -> dict[str, Any]:
    """The request's JSON object, whatever its content type says.

    Raises a 400 ApiError for what is no JSON object or has more values than a request to this
    model can need, HTTPRequestEntityTooLarge over the limit.
    """
    context = request.app[CONTEXT]
    limit = context.settings.max_body
    if (length := request.content_length or 0) > limit:
        # Said at once: a client that announces its body may wait for leave to send it.
        raise web.HTTPRequestEntityTooLarge(limit, length)
    model = context.engine.status.model
    most = values_limit(0 if model is None else model.context_length)
    try:
        pieces = await _read(request, limit, most)
    except (HttpProcessingError, web.RequestPayloadError) as error:
        raise invalid(None, f"the body cannot be read: {error}") from None
    except TooManyValuesError as error:
        raise invalid(
            None,
            f"the body has more than {error.limit} JSON values, which is more than a request to"
            " this model can use",
            code="too_many_values",
        ) from None
    size = sum(map(len, pieces))
    if size <= _INLINE_BYTES:
        return parse_object(b"".join(pieces))
    return await within_time(context, lambda: parse_object(_joined(pieces)), size=size)


async def _read(request: web.Request, limit: int, most_values: int) -> list[bytes]:
    """The body's pieces as they come, no more of them than may be.

    Raises HTTPRequestEntityTooLarge, TooManyValuesError, and what aiohttp does for a body that
    is cut off or encoded wrongly.
    """
    counter = ValueCounter(most_values)
    pieces: list[bytes] = []
    size = 0
    while piece := await request.content.readany():
        size += len(piece)
        if size > limit:
            raise web.HTTPRequestEntityTooLarge(limit, size)
        if size >= _LARGE_BYTES:
            request[LARGE] = True
        # aiohttp gives what has come: rarely more than a slice, unless it was compressed.
        for start in range(0, len(piece), _SLICE):
            counter.feed(piece[start : start + _SLICE])
            if start:
                await asyncio.sleep(0)
        pieces.append(piece)
    return pieces


def _joined(pieces: list[bytes]) -> bytes:
    """One text of all pieces, which are let go of: their memory is not needed twice."""
    raw = b"".join(pieces)
    pieces.clear()
    return raw


def values_limit(context_length: int) -> int:
    """How many JSON values a body may have.

    A prompt of token ids has one a token, a conversation some six a message, of which each is
    several tokens; what tools and schemas need beside does not grow with the context.
    """
    wanted = _LEAST_VALUES_LIMIT + _VALUES_PER_TOKEN * context_length
    return min(wanted, max(_MOST_VALUES_LIMIT, 2 * context_length))


def parse_object(raw: bytes) -> dict[str, Any]:
    """Strict JSON: UTF-8, finite numbers, whole characters, bounded depth."""
    if not raw.strip():
        raise invalid(None, "the body is empty, expected a JSON object")
    raw = raw.removeprefix(BOM_UTF8)
    try:
        value = _loads(raw) if len(raw) <= _INLINE_BYTES else parse_in_slices(raw, _loads)
    except RecursionError:
        raise invalid(None, f"the body is nested deeper than {_DEPTH_LIMIT} levels") from None
    except UnicodeDecodeError as error:
        raise invalid(None, f"the body is not UTF-8: byte {error.start} is no text") from None
    except json.JSONDecodeError as error:
        raise invalid(None, f"the body is not JSON: {error}") from None
    except ValueError as error:
        raise invalid(None, f"the body has a number that cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise invalid(None, f"the body is {describe(value)}, expected a JSON object")
    if _deeper_than(value, _DEPTH_LIMIT):
        raise invalid(None, f"the body is nested deeper than {_DEPTH_LIMIT} levels")
    # Only where it is escaped can there be half a character: plain UTF-8 has none.
    if _escapes_surrogates(raw) and not _all_whole(value):
        raise invalid(None, "the body escapes half of a surrogate pair, which is no character")
    return value


def _loads(raw: bytes) -> Any:
    return json.loads(raw.decode(), parse_constant=_no_constant, parse_float=_finite)


def _escapes_surrogates(raw: bytes) -> bool:
    return any(
        _SURROGATE_ESCAPE.search(raw, start, start + _SLICE + 4)
        for start in range(0, len(raw), _SLICE)
    )


def _all_whole(value: Any) -> bool:
    """Whether no string has half a surrogate pair, keys included."""
    stack = [value]
    while stack:
        inner = stack.pop()
        if isinstance(inner, dict):
            stack.extend(inner)
            stack.extend(inner.values())
        elif isinstance(inner, list):
            stack.extend(inner)
        elif isinstance(inner, str) and not inner.isascii():
            for start in range(0, len(inner), _SLICE):
                try:
                    inner[start : start + _SLICE].encode()
                except UnicodeEncodeError:
                    return False
    return True


def describe(value: object) -> str:
    """A JSON value as an error names it: short whatever its size."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    text = json.dumps(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def _no_constant(text: str) -> NoReturn:
    raise json.JSONDecodeError(f"{text} is not a JSON value", "", 0)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        # JSON has no word for what it would be read as.
        raise ValueError(f"{text[:40]} is larger than any double-precision number")
    return value


def _deeper_than(value: dict[str, Any], limit: int) -> bool:
    level: list[dict[str, Any] | list[Any]] = [value]
    for _ in range(limit):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
