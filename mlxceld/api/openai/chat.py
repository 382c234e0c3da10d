"""``POST /v1/chat/completions``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aiohttp import web

from mlxceld.api.body import describe, read_object
from mlxceld.api.context import CONTEXT, REQUEST_ID
from mlxceld.api.errors import invalid
from mlxceld.api.generation import Choice, gather, plan_of, start
from mlxceld.api.openai.answer import ChunkFrame, Envelope, usage_object
from mlxceld.api.openai.logprobs import chat_logprobs
from mlxceld.api.openai.models import answering_model
from mlxceld.api.openai.params import sampling_params, session_of
from mlxceld.api.openai.schemas import ChatRequest, NamedTool
from mlxceld.api.openai.sse import OpenAiStream, stream_events
from mlxceld.api.parts import Answer, CallArguments, CallStart, Part, Reasoning, Text
from mlxceld.api.reader import AnswerReader
from mlxceld.api.turn import Turn, prepare
from mlxceld.api.validation import validate
from mlxceld.engine.events import TokenLogprob, Usage
from mlxceld.models.tool_prompt import tool_as_rendered

_MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
"""What of a message the chat template gets to see."""


async def post_chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    context = request.app[CONTEXT]
    body = await read_object(request)
    fields = validate(ChatRequest, body)
    _check(fields)
    model = answering_model(context, fields.model)
    turn = _turn(fields, body)
    prepared = await prepare(context, turn)
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
    if fields.stream:
        writer = _ChatChunks(
            envelope,
            readers,
            logprobs=bool(fields.logprobs),
            include_usage=fields.include_usage,
        )
        return await stream_events(request, streams, writer, len(sampling))
    choices, usage = await gather(context, streams, len(sampling))
    return web.json_response(
        _answer(envelope, choices, readers, usage, logprobs=bool(fields.logprobs))
    )


def _check(fields: ChatRequest) -> None:
    """What depends on several fields at once; raises ApiError."""
    for index, message in enumerate(fields.messages):
        if message.content is None and not (message.role == "assistant" and message.tool_calls):
            raise invalid(
                f"messages[{index}].content",
                f"messages[{index}].content is null, expected text; only an assistant message"
                " with tool_calls may have none",
            )
    if fields.top_logprobs is not None and not fields.logprobs:
        raise invalid(
            "top_logprobs",
            f"top_logprobs is {fields.top_logprobs}, but logprobs is not true; it needs to be",
        )
    if isinstance(fields.tool_choice, NamedTool):
        name = fields.tool_choice.function.name
        if name not in (tool.function.name for tool in fields.tools or ()):
            raise invalid(
                "tool_choice",
                f"tool_choice names the function {describe(name)}, which is not among tools",
            )
    elif fields.tool_choice == "required" and not fields.tools:
        raise invalid("tool_choice", 'tool_choice is "required", but there are no tools')
    if fields.continue_final_message:
        if fields.add_generation_prompt:
            raise invalid(
                "continue_final_message",
                "continue_final_message and add_generation_prompt are both true;"
                " an answer either continues the last message or begins a new one",
            )
        if fields.messages[-1].role != "assistant":
            raise invalid(
                "continue_final_message",
                "continue_final_message is true, but the last message is not the assistant's",
            )


def _logprobs_wanted(fields: ChatRequest) -> int | None:
    return (fields.top_logprobs or 0) if fields.logprobs else None


def _turn(fields: ChatRequest, body: dict[str, Any]) -> Turn:
    """The request in the common form; raises ApiError.

    The body as it was sent goes to the template: the order of a tool's keys is part of the prompt.
    """
    continued = bool(fields.continue_final_message)
    return Turn(
        messages=[
            {name: message[name] for name in _MESSAGE_FIELDS if message.get(name) is not None}
            for message in body["messages"]
        ],
        tools=[tool_as_rendered(tool) for tool in body.get("tools") or ()] or None,
        tool_choice=body.get("tool_choice"),
        parallel=fields.parallel_tool_calls is not False,
        template_kwargs=body.get("chat_template_kwargs"),
        generation_prompt=(
            not continued if fields.add_generation_prompt is None else fields.add_generation_prompt
        ),
        continued=continued,
        schema=_schema(fields),
        schema_param="response_format.json_schema.schema",
    )


def _schema(fields: ChatRequest) -> dict[str, Any] | None:
    form = fields.response_format
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": "object"}
    if form.json_schema is None or form.json_schema.json_schema is None:
        path = "response_format.json_schema" + (".schema" if form.json_schema else "")
        raise invalid(path, f"{path} is missing", code="missing_required_parameter")
    return form.json_schema.json_schema


def _answer(
    envelope: Envelope,
    choices: Sequence[Choice],
    readers: Sequence[AnswerReader],
    usage: Usage,
    *,
    logprobs: bool,
) -> dict[str, Any]:
    entries = []
    for index, (choice, reader) in enumerate(zip(choices, readers, strict=True)):
        answer = Answer.of([*reader.push(choice.text, choice.logprobs), *reader.finish()])
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.text if answer.text or not answer.calls else None,
            "refusal": None,
        }
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in answer.calls
            ]
        entries.append(
            {
                "index": index,
                "message": message,
                "logprobs": chat_logprobs(answer.logprobs or ()) if logprobs else None,
                "finish_reason": _reason(choice.reason, reader),
            }
        )
    return {
        **envelope.head("chat.completion"),
        "choices": entries,
        "usage": usage_object(usage),
    }


def _reason(reason: str, reader: AnswerReader) -> str:
    return "tool_calls" if reader.called and reason == "stop" else reason


class _ChatChunks(OpenAiStream):
    """The chunks of a chat stream: the role first, then the parts, then why it ended."""

    def __init__(
        self,
        envelope: Envelope,
        readers: Sequence[AnswerReader],
        *,
        logprobs: bool,
        include_usage: bool,
    ) -> None:
        self._frame = ChunkFrame(envelope, "chat.completion.chunk", include_usage=include_usage)
        self._readers = readers
        self._logprobs = logprobs

    def opening(self) -> str:
        delta = '{"role": "assistant", "content": "", "refusal": null}'
        return "".join(self._chunk(i, delta, "null", "null") for i in range(len(self._readers)))

    def delta(self, index: int, text: str, logprobs: Sequence[TokenLogprob]) -> str:
        return self._parts(index, self._readers[index].push(text, logprobs))

    def finish(self, index: int, reason: str, stop_text: str | None) -> str:
        reader = self._readers[index]
        rest = self._parts(index, reader.finish())
        return rest + self._chunk(index, "{}", "null", f'"{_reason(reason, reader)}"')

    def usage(self, usage: Usage) -> str:
        return self._frame.usage(usage)

    def _parts(self, index: int, parts: Sequence[Part]) -> str:
        return "".join([self._part(index, part) for part in parts])

    def _part(self, index: int, part: Part) -> str:
        shown = "null"
        match part:
            case Text():
                delta = f'{{"content": {json.dumps(part.text)}}}'
                shown = json.dumps(chat_logprobs(part.logprobs)) if self._logprobs else "null"
            case Reasoning():
                delta = f'{{"reasoning_content": {json.dumps(part.text)}}}'
            case CallStart():
                call: dict[str, Any] = {
                    "index": part.index,
                    "id": part.id,
                    "type": "function",
                    "function": {"name": part.name, "arguments": ""},
                }
                delta = json.dumps({"tool_calls": [call]})
            case CallArguments():
                more = {"index": part.index, "function": {"arguments": part.text}}
                delta = json.dumps({"tool_calls": [more]})
        return self._chunk(index, delta, shown, "null")

    def _chunk(self, index: int, delta: str, logprobs: str, reason: str) -> str:
        return self._frame.choice(
            f'{{"index": {index}, "delta": {delta}, "logprobs": {logprobs},'
            f' "finish_reason": {reason}}}'
        )
