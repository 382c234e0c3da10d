"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from mlxceld.api.anthropic.conversion import conversation_of, stops_of
from mlxceld.api.anthropic.fields import COUNT_FIELDS, MESSAGE_FIELDS, check_fields
from mlxceld.api.anthropic.schemas import MessagesRequest, PromptRequest
from mlxceld.api.body import read_object
from mlxceld.api.context import CONTEXT, REQUEST_ID
from mlxceld.api.errors import ANTHROPIC, ApiError
from mlxceld.api.generation import gather, plan_of, start
from mlxceld.api.notes import Notes, tell
from mlxceld.api.openai.models import answering_model
from mlxceld.api.openai.sse import stream_events
from mlxceld.api.parts import Answer, CallArguments, CallStart, Part, Reasoning, Text
from mlxceld.api.prepare import prepare
from mlxceld.api.reader import AnswerReader
from mlxceld.api.validation import validate
from mlxceld.engine.events import PrefillProgress, TokenLogprob, Usage
from mlxceld.engine.request import ANONYMOUS_SESSION, SamplingParams

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


async def post_messages(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    context = request.app[CONTEXT]
    body = await read_object(request)
    notes = Notes()
    check_fields(MESSAGE_FIELDS, body, notes)
    fields = validate(MessagesRequest, body)
    model = answering_model(context, fields.model)
    prepared = await prepare(context, conversation_of(fields, notes))
    tell(request, notes)
    sampling = SamplingParams(
        temperature=1.0 if fields.temperature is None else fields.temperature,
        top_p=1.0 if fields.top_p is None else fields.top_p,
        top_k=fields.top_k or 0,
        max_tokens=fields.max_tokens,
        stop=stops_of(fields),
    )
    session = fields.metadata.user_id if fields.metadata else None
    streams = start(
        request,
        plan_of(
            prepared,
            endpoint="messages",
            sampling=[sampling],
            session=session or ANONYMOUS_SESSION,
            stream=bool(fields.stream),
            prompt_param="messages",
        ),
    )
    # Where nothing is kept nothing is created.
    marked = prepared.marked_tokens if context.engine.status.cache.enabled else 0
    reader = prepared.reader(lambda: f"toolu_{context.ids()}")
    head = {
        "id": f"msg_{request[REQUEST_ID]}",
        "type": "message",
        "role": "assistant",
        "model": model,
    }
    if fields.stream:
        writer = _MessageEvents(head, reader, marked, len(prepared.prompt.tokens))
        return await stream_events(request, streams, writer, 1)
    choices, usage = await gather(context, streams, 1)
    choice = choices[0]
    answer = Answer.of([*reader.push(choice.text), *reader.finish()])
    message = {
        **head,
        "content": _blocks(answer),
        "stop_reason": _stop_reason(choice.reason, choice.stop_text, reader),
        "stop_sequence": choice.stop_text,
        "usage": usage_object(usage, marked),
    }
    return web.json_response(message)


async def post_count_tokens(request: web.Request) -> web.Response:
    """How many tokens a conversation is as a prompt."""
    context = request.app[CONTEXT]
    body = await read_object(request)
    notes = Notes()
    check_fields(COUNT_FIELDS, body, notes)
    fields = validate(PromptRequest, body)
    answering_model(context, fields.model)
    prepared = await prepare(context, conversation_of(fields, notes), only_count=True)
    tell(request, notes)
    return web.json_response({"input_tokens": len(prepared.prompt.tokens)})


def usage_object(usage: Usage, marked_tokens: int) -> dict[str, Any]:
    """The counts as Anthropic's clients read them: the three kinds of input add up to the prompt.

    ``marked_tokens`` is where the last ``cache_control`` marker stands. What was computed before
    it counts as cache creation, what was computed after it as input.
    """
    created = max(0, marked_tokens - usage.cached_tokens)
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens - created,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _stop_reason(reason: str, stop_text: str | None, reader: AnswerReader) -> str:
    if reader.called and reason == "stop":
        return "tool_use"
    return "stop_sequence" if stop_text is not None else _STOP_REASONS[reason]


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    # An input is an object, which cannot hold half of one.
    calls = answer.whole_calls()
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.text or not (calls or answer.reasoning):
        blocks.append({"type": "text", "text": answer.text})
    blocks.extend(
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
        for call in calls
    )
    return blocks


class _MessageEvents:
    """The events of a message stream: blocks in their order, one open at a time.

    The message begins when it is known what was read from the cache, at the first sign of work.
    """

    def __init__(
        self, head: dict[str, Any], reader: AnswerReader, marked_tokens: int, prompt_tokens: int
    ) -> None:
        self._head = head
        self._reader = reader
        self._marked_tokens = marked_tokens
        self._prompt_tokens = prompt_tokens
        self._begun = False
        self._open: tuple[str, int] | None = None  # the kind of the open block, and its call
        self._blocks = 0
        self._end: tuple[str, str | None] = ("stop", None)

    def opening(self) -> str:
        return ""

    def progress(self, progress: PrefillProgress) -> str:
        return self._begin(progress.cached)

    def keep_alive(self, progress: PrefillProgress | None) -> str:
        return _event("ping", {})

    def delta(self, index: int, text: str, logprobs: Sequence[TokenLogprob]) -> str:
        return self._begin(0) + self._parts(self._reader.push(text))

    def finish(self, index: int, reason: str, stop_text: str | None) -> str:
        self._end = (reason, stop_text)
        written = self._begin(0) + self._parts(self._reader.finish())
        if not self._blocks:
            written += self._block("text", 0, {"type": "text", "text": ""})
        return written + self._close()

    def closing(self, usage: Usage) -> str:
        reason, stop_text = self._end
        delta = {
            "stop_reason": _stop_reason(reason, stop_text, self._reader),
            "stop_sequence": stop_text,
        }
        counts = usage_object(usage, self._marked_tokens)
        return _event("message_delta", {"delta": delta, "usage": counts}) + _event(
            "message_stop", {}
        )

    def failure(self, error: ApiError) -> str:
        return f"event: error\ndata: {json.dumps(error.envelope(ANTHROPIC))}\n\n"

    def _begin(self, cached: int) -> str:
        if self._begun:
            return ""
        self._begun = True
        counts = usage_object(Usage(self._prompt_tokens, 0, cached), self._marked_tokens)
        message = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": counts,
        }
        return _event("message_start", {"message": message}) + _event("ping", {})

    def _parts(self, parts: Sequence[Part]) -> str:
        return "".join(self._part(part) for part in parts)

    def _part(self, part: Part) -> str:
        match part:
            case Text():
                if not part.text:
                    return ""
                begun = self._block("text", 0, {"type": "text", "text": ""})
                return begun + self._more({"type": "text_delta", "text": part.text})
            case Reasoning():
                block = {"type": "thinking", "thinking": "", "signature": ""}
                begun = self._block("thinking", 0, block)
                return begun + self._more({"type": "thinking_delta", "thinking": part.text})
            case CallStart():
                return self._block(
                    "tool_use",
                    part.index,
                    {"type": "tool_use", "id": part.id, "name": part.name, "input": {}},
                )
            case CallArguments():
                return self._more({"type": "input_json_delta", "partial_json": part.text})

    def _block(self, kind: str, call: int, block: dict[str, Any]) -> str:
        """Open a block, unless it is open; whatever else is open ends."""
        if self._open == (kind, call):
            return ""
        closed = self._close()
        self._open = (kind, call)
        self._blocks += 1
        return closed + _event(
            "content_block_start", {"index": self._blocks - 1, "content_block": block}
        )

    def _more(self, delta: dict[str, Any]) -> str:
        return _event("content_block_delta", {"index": self._blocks - 1, "delta": delta})

    def _close(self) -> str:
        if self._open is None:
            return ""
        kind, _ = self._open
        self._open = None
        # Clients hand thinking back with its signature; there is nothing to sign here.
        signed = (
            self._more({"type": "signature_delta", "signature": ""}) if kind == "thinking" else ""
        )
        return signed + _event("content_block_stop", {"index": self._blocks - 1})


def _event(kind: str, fields: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"
