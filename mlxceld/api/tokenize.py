"""``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

import asyncio

from aiohttp import web

from mlxceld.api.body import describe, read_object
from mlxceld.api.context import CONTEXT
from mlxceld.api.errors import invalid
from mlxceld.api.validation import RequestModel, validate


class TokenizeRequest(RequestModel):
    """``content`` and ``prompt`` are two names of one field."""

    content: str | None = None
    prompt: str | None = None
    add_special: bool | None = None


class DetokenizeRequest(RequestModel):
    """``tokens`` are ids of the model's vocabulary."""

    tokens: list[int]


async def post_tokenize(request: web.Request) -> web.Response:
    """The token ids of a text; ``add_special`` adds what a completion's prompt would get."""
    context = request.app[CONTEXT]
    fields = validate(TokenizeRequest, await read_object(request))
    text = fields.prompt if fields.content is None else fields.content
    if text is None:
        raise invalid("content", "content is missing", code="missing_required_parameter")
    codec = context.text()
    special = bool(fields.add_special)
    tokens = await asyncio.get_running_loop().run_in_executor(
        context.worker, lambda: codec.encode(text, add_special_tokens=special)
    )
    return web.json_response({"tokens": tokens, "count": len(tokens)})


async def post_detokenize(request: web.Request) -> web.Response:
    """The text of token ids, special tokens by their names."""
    context = request.app[CONTEXT]
    tokens = validate(DetokenizeRequest, await read_object(request)).tokens
    codec = context.text()
    for index, token in enumerate(tokens):
        if not 0 <= token < codec.vocab_size:
            raise invalid(
                f"tokens[{index}]",
                f"tokens[{index}] is {describe(token)}, expected a token id from 0 to"
                f" {codec.vocab_size - 1}",
            )
    text = await asyncio.get_running_loop().run_in_executor(
        context.worker, lambda: codec.decode(tokens, skip_special_tokens=False)
    )
    return web.json_response({"content": text})
