"""``POST /v1/chat/completions``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web

from mlxceld.api.body import read_object
from mlxceld.api.context import CONTEXT, REQUEST_ID
from mlxceld.api.generation import Choice, gather, plan_of, start
from mlxceld.api.notes import Notes, tell
from mlxceld.api.openai.answer import ChunkFrame, Envelope, usage_object
from mlxceld.api.openai.calls import CallWriter
from mlxceld.api.openai.conversation import read_chat
from mlxceld.api.openai.logprobs import chat_logprobs
from mlxceld.api.openai.models import answering_model
from mlxceld.api.openai.params import sampling_params, session_of
from mlxceld.api.openai.reasoning import shows_reasoning
from mlxceld.api.openai.schemas import ChatRequest
from mlxceld.api.openai.sse import OpenAiStream, stream_events
from mlxceld.api.openai.tools import ToolUse
from mlxceld.api.parts import Answer, CallArguments, CallStart, Part, Reasoning, Text
from mlxceld.api.prepare import prepare
from mlxceld.api.reader import AnswerReader
from mlxceld.engine.events import TokenLogprob, Usage

_REASONING_FIELDS = ("reasoning_content", "reasoning")
"""The field that thinking comes in, and its alias."""


async def post_chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    context = request.app[CONTEXT]
    body = await read_object(request)
    notes = Notes()
    asked = read_chat(body, notes)
    fields, tools = asked.fields, asked.tools
    model = answering_model(context, fields.model)
    prepared = await prepare(context, asked.conversation)
    tell(request, notes)
    sampling = sampling_params(fields, logprobs=_logprobs_wanted(fields), default_max_tokens=None)
    if prepared.constraint is not None:
        # Where the schema is full nothing but an end can come.
        sampling = [replace(one, ignore_eos=False) for one in sampling]
    streams = start(
        request,
        plan_of(
            prepared,
            endpoint="chat",
            sampling=sampling,
            session=session_of(fields),
            stream=bool(fields.stream),
            prompt_param="messages",
        ),
    )
    envelope = Envelope(f"chatcmpl-{request[REQUEST_ID]}", int(context.wall()), model)
    readers = [prepared.reader(lambda: f"call_{context.ids()}") for _ in sampling]
    shown = _REASONING_FIELDS if context.settings.reasoning_alias else _REASONING_FIELDS[:1]
    form = _AnswerForm(tools, shown if shows_reasoning(fields) else (), bool(fields.logprobs))
    if fields.stream:
        writer = _ChatChunks(envelope, readers, form, include_usage=fields.include_usage)
        return await stream_events(request, streams, writer, len(sampling))
    choices, usage = await gather(context, streams, len(sampling))
    return web.json_response(_answer(envelope, choices, readers, usage, form))


def _logprobs_wanted(fields: ChatRequest) -> int | None:
    return (fields.top_logprobs or 0) if fields.logprobs else None


@dataclass(frozen=True, slots=True)
class _AnswerForm:
    """How an answer is written: its calls, the fields of its reasoning, log-probabilities."""

    tools: ToolUse
    reasoning: tuple[str, ...]
    logprobs: bool


def _answer(
    envelope: Envelope,
    choices: Sequence[Choice],
    readers: Sequence[AnswerReader],
    usage: Usage,
    form: _AnswerForm,
) -> dict[str, Any]:
    entries = []
    calls = CallWriter(form.tools)
    for index, (choice, reader) in enumerate(zip(choices, readers, strict=True)):
        answer = Answer.of([*reader.push(choice.text, choice.logprobs), *reader.finish()])
        called = calls.whole(answer.calls or ())
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.text if answer.text or not called else None,
            "refusal": None,
        }
        if answer.reasoning:
            message.update(dict.fromkeys(form.reasoning, answer.reasoning))
        message.update(called)
        entries.append(
            {
                "index": index,
                "message": message,
                "logprobs": chat_logprobs(answer.logprobs or ()) if form.logprobs else None,
                "finish_reason": _reason(choice.reason, reader, calls),
            }
        )
    return {
        **envelope.head("chat.completion"),
        "choices": entries,
        "usage": usage_object(usage),
    }


def _reason(reason: str, reader: AnswerReader, calls: CallWriter) -> str:
    return calls.finish_reason if reader.called and reason == "stop" else reason


class _ChatChunks(OpenAiStream):
    """The chunks of a chat stream: the role first, then the parts, then why it ended."""

    def __init__(
        self,
        envelope: Envelope,
        readers: Sequence[AnswerReader],
        form: _AnswerForm,
        *,
        include_usage: bool,
    ) -> None:
        self._frame = ChunkFrame(envelope, "chat.completion.chunk", include_usage=include_usage)
        self._readers = readers
        self._calls = [CallWriter(form.tools) for _ in readers]
        self._logprobs = form.logprobs
        self._reasoning = form.reasoning

    def opening(self) -> str:
        delta = '{"role": "assistant", "content": "", "refusal": null}'
        return "".join(self._chunk(i, delta, "null", "null") for i in range(len(self._readers)))

    def delta(self, index: int, text: str, logprobs: Sequence[TokenLogprob]) -> str:
        return self._parts(index, self._readers[index].push(text, logprobs))

    def finish(self, index: int, reason: str, stop_text: str | None) -> str:
        reader = self._readers[index]
        calls = self._calls[index]
        rest = self._parts(index, reader.finish()) + self._deltas(index, calls.rest())
        return rest + self._chunk(index, "{}", "null", f'"{_reason(reason, reader, calls)}"')

    def usage(self, usage: Usage) -> str:
        return self._frame.usage(usage)

    def _parts(self, index: int, parts: Sequence[Part]) -> str:
        return "".join([self._part(index, part) for part in parts])

    def _part(self, index: int, part: Part) -> str:
        match part:
            case Text():
                shown = json.dumps(chat_logprobs(part.logprobs)) if self._logprobs else "null"
                return self._chunk(index, f'{{"content": {json.dumps(part.text)}}}', shown, "null")
            case Reasoning():
                thought = dict.fromkeys(self._reasoning, part.text)
                return self._deltas(index, [thought] if thought else [])
            case CallStart() | CallArguments():
                return self._deltas(index, self._calls[index].part(part))

    def _deltas(self, index: int, deltas: Sequence[dict[str, Any]]) -> str:
        return "".join(self._chunk(index, json.dumps(one), "null", "null") for one in deltas)

    def _chunk(self, index: int, delta: str, logprobs: str, reason: str) -> str:
        return self._frame.choice(
            f'{{"index": {index}, "delta": {delta}, "logprobs": {logprobs},'
            f' "finish_reason": {reason}}}'
        )
