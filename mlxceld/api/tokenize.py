"""``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from mlxceld.api.body import describe, read_object
from mlxceld.api.context import CONTEXT
from mlxceld.api.errors import invalid
from mlxceld.api.text_bounds import detokenize_limit, tokenize_limit
from mlxceld.api.time_limit import within_time
from mlxceld.api.validation import RequestModel, validate

_IDS_AT_ONCE = 4096
_BYTES_PER_TOKEN = 4


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
    name = "prompt" if fields.content is None else "content"
    if len(text) > (limit := tokenize_limit(context)):
        raise invalid(
            name,
            f"{name} has {len(text)} characters, expected at most {limit}, which is more than this"
            " model's context holds",
            code="text_too_long",
        )
    codec = context.text()
    special = bool(fields.add_special)

    def work() -> str:
        return _written(codec.encode(text, add_special_tokens=special))

    written = await within_time(context, work, size=len(text))
    return web.json_response(text=written)


async def post_detokenize(request: web.Request) -> web.Response:
    """The text of token ids, special tokens by their names."""
    context = request.app[CONTEXT]
    tokens = validate(DetokenizeRequest, await read_object(request)).tokens
    if len(tokens) > (limit := detokenize_limit(context)):
        raise invalid(
            "tokens",
            f"tokens has {len(tokens)} elements, expected at most {limit}",
            code="too_many_tokens",
        )
    codec = context.text()
    for index, token in enumerate(tokens):
        if not 0 <= token < codec.vocab_size:
            raise invalid(
                f"tokens[{index}]",
                f"tokens[{index}] is {describe(token)}, expected a token id from 0 to"
                f" {codec.vocab_size - 1}",
            )
    text = await within_time(
        context,
        lambda: codec.decode(tokens, skip_special_tokens=False),
        size=len(tokens) * _BYTES_PER_TOKEN,
    )
    return web.json_response({"content": text})


def _written(tokens: Sequence[int]) -> str:
    """The answer, written in parts: a million ids in one would hold up every other thread."""
    parts = (
        ", ".join(map(str, tokens[start : start + _IDS_AT_ONCE]))
        for start in range(0, len(tokens), _IDS_AT_ONCE)
    )
    return f'{{"tokens": [{", ".join(parts)}], "count": {len(tokens)}}}'
