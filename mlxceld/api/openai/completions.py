"""``POST /v1/completions``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from aiohttp import web

from mlxceld.api.body import read_object
from mlxceld.api.context import CONTEXT, REQUEST_ID, ApiContext
from mlxceld.api.errors import invalid
from mlxceld.api.generation import Choice, Plan, gather, start
from mlxceld.api.notes import Notes, tell
from mlxceld.api.openai.answer import ChunkFrame, Envelope, usage_object
from mlxceld.api.openai.fields import COMPLETION_FIELDS
from mlxceld.api.openai.logprobs import CompletionLogprobs
from mlxceld.api.openai.models import answering_model
from mlxceld.api.openai.params import sampling_params, session_of
from mlxceld.api.openai.schemas import CompletionRequest
from mlxceld.api.openai.sse import OpenAiStream, stream_events
from mlxceld.api.text_bounds import check_fits
from mlxceld.api.time_limit import within_time
from mlxceld.api.validation import validate
from mlxceld.engine.events import TokenLogprob, Usage

DEFAULT_MAX_TOKENS = 16
"""As in OpenAI's API; chat has no such default."""


async def post_completions(request: web.Request) -> web.StreamResponse:
    """Continue one or several prompts."""
    context = request.app[CONTEXT]
    body = await read_object(request)
    notes = Notes()
    COMPLETION_FIELDS.check(body, notes)
    fields = validate(CompletionRequest, body)
    _check(fields)
    tell(request, notes)
    model = answering_model(context, fields.model)
    prompts = await tokens_of(context, fields.prompt)
    sampling = sampling_params(
        fields, logprobs=fields.logprobs, default_max_tokens=DEFAULT_MAX_TOKENS
    )
    plan = Plan(
        endpoint="completions",
        prompts=prompts,
        sampling=sampling,
        session=session_of(fields),
        stream=bool(fields.stream),
        prompt_param="prompt",
    )
    streams = start(request, plan)
    envelope = Envelope(f"cmpl-{request[REQUEST_ID]}", int(context.wall()), model)
    logprobs = fields.logprobs is not None
    if fields.stream:
        writer = _CompletionChunks(
            envelope, len(streams), logprobs=logprobs, include_usage=fields.include_usage
        )
        return await stream_events(request, streams, writer, len(sampling))
    choices, usage = await gather(context, streams, len(sampling))
    return web.json_response(_answer(envelope, choices, usage, logprobs=logprobs))


def _check(fields: CompletionRequest) -> None:
    """What is not supported, and what depends on several fields; raises ApiError."""
    if fields.echo:
        raise invalid("echo", "echo is true, expected false: echoing the prompt is not supported")
    if fields.suffix:
        raise invalid("suffix", "suffix is set, expected none: insertion is not supported")
    choices = fields.n or 1
    if fields.best_of is not None and fields.best_of != choices:
        raise invalid(
            "best_of",
            f"best_of is {fields.best_of}, expected the value of n, {choices}:"
            " choosing among more than are returned is not supported",
        )


async def tokens_of(
    context: ApiContext, prompt: str | list[str] | list[int] | list[list[int]]
) -> list[list[int]]:
    """The token ids of every prompt; texts get the special tokens that the model's begin with."""
    codec = context.text()
    texts = [one for one in _each(prompt) if isinstance(one, str)]
    for text in texts:
        check_fits(context, [text], "prompt")

    def encode() -> list[list[int]]:
        return [
            codec.encode(one, add_special_tokens=True) if isinstance(one, str) else one
            for one in _each(prompt)
        ]

    return await within_time(context, encode, size=sum(map(len, texts)))


def _each(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """The prompts one by one; their schema has checked that a list is not empty nor mixed."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [prompt]
    return cast("list[str | list[int]]", prompt)


def _answer(
    envelope: Envelope, choices: Sequence[Choice], usage: Usage, *, logprobs: bool
) -> dict[str, Any]:
    return {
        **envelope.head("text_completion"),
        "choices": [
            {
                "index": index,
                "text": choice.text,
                "logprobs": CompletionLogprobs().take(choice.logprobs) if logprobs else None,
                "finish_reason": choice.reason,
            }
            for index, choice in enumerate(choices)
        ],
        "usage": usage_object(usage),
    }


class _CompletionChunks(OpenAiStream):
    """The chunks of a completion stream."""

    def __init__(
        self, envelope: Envelope, choices: int, *, logprobs: bool, include_usage: bool
    ) -> None:
        self._frame = ChunkFrame(envelope, "text_completion", include_usage=include_usage)
        self._logprobs = [CompletionLogprobs() for _ in range(choices)] if logprobs else None

    def opening(self) -> str:
        return ""

    def delta(self, index: int, text: str, logprobs: Sequence[TokenLogprob]) -> str:
        lists = None if self._logprobs is None else self._logprobs[index].take(logprobs)
        return self._chunk(index, json.dumps(text), json.dumps(lists), "null")

    def finish(self, index: int, reason: str, stop_text: str | None) -> str:
        return self._chunk(index, '""', "null", f'"{reason}"')

    def usage(self, usage: Usage) -> str:
        return self._frame.usage(usage)

    def _chunk(self, index: int, text: str, logprobs: str, reason: str) -> str:
        return self._frame.choice(
            f'{{"index": {index}, "text": {text}, "logprobs": {logprobs},'
            f' "finish_reason": {reason}}}'
        )
