"""A request's body: from bytes to a JSON object, or an error that says what is wrong with it."""

from __future__ import annotations

import asyncio
import json
import re
from codecs import BOM_UTF8
from typing import Any, NoReturn

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from mlxceld.api.context import CONTEXT
from mlxceld.api.errors import invalid

_DEPTH_LIMIT = 64
"""Deeper than any tool's schema; templates and JSON writers recurse, so this is no formality."""

_INLINE_BYTES = 256 * 1024
"""A larger body is parsed beside the event loop, which other streams run on."""

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_object(request: web.Request) -> dict[str, Any]:
    """The request's JSON object, whatever its content type says.

    Raises a 400 ApiError for what is no JSON object, HTTPRequestEntityTooLarge over the limit.
    """
    limit = request.app[CONTEXT].settings.max_body
    if (length := request.content_length or 0) > limit:
        # Said at once: a client that announces its body may wait for leave to send it.
        raise web.HTTPRequestEntityTooLarge(limit, length)
    try:
        raw = await request.read()
    except (HttpProcessingError, web.RequestPayloadError) as error:
        raise invalid(None, f"the body cannot be read: {error}") from None
    if len(raw) <= _INLINE_BYTES:
        return parse_object(raw)
    worker = request.app[CONTEXT].worker
    return await asyncio.get_running_loop().run_in_executor(worker, parse_object, raw)


def parse_object(raw: bytes) -> dict[str, Any]:
    """Strict JSON: UTF-8, no NaN or Infinity, whole characters, bounded depth."""
    if not raw.strip():
        raise invalid(None, "the body is empty, expected a JSON object")
    try:
        value = json.loads(raw.removeprefix(BOM_UTF8).decode(), parse_constant=_no_constant)
    except RecursionError:
        raise invalid(None, f"the body is nested deeper than {_DEPTH_LIMIT} levels") from None
    except UnicodeDecodeError as error:
        raise invalid(None, f"the body is not UTF-8: byte {error.start} is no text") from None
    except ValueError as error:
        raise invalid(None, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise invalid(None, f"the body is {describe(value)}, expected a JSON object")
    if _deeper_than(value, _DEPTH_LIMIT):
        raise invalid(None, f"the body is nested deeper than {_DEPTH_LIMIT} levels")
    if _SURROGATE_ESCAPE.search(raw):
        # Only now can there be half a character: plain UTF-8 has none.
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise invalid(
                None, "the body escapes half of a surrogate pair, which is no character"
            ) from None
    return value


def describe(value: object) -> str:
    """A JSON value as an error names it: short whatever its size."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    text = json.dumps(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON value")


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
