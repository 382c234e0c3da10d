"""``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from mlxceld.api.body import describe, read_object
from mlxceld.api.context import CONTEXT, REQUEST_ID, ApiContext
from mlxceld.api.errors import invalid
from mlxceld.api.generation import Choice, Plan, gather, start
from mlxceld.api.openai.answer import ChunkFrame, Envelope, usage_object
from mlxceld.api.openai.logprobs import chat_logprobs
from mlxceld.api.openai.models import answering_model
from mlxceld.api.openai.params import sampling_params, session_of
from mlxceld.api.openai.schemas import ChatRequest, NamedTool
from mlxceld.api.openai.sse import stream_events
from mlxceld.api.validation import validate
from mlxceld.engine.events import TokenLogprob, Usage
from mlxceld.models.continuation import Continuation
from mlxceld.models.errors import ChatTemplateError
from mlxceld.models.text import RenderedPrompt

_MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
"""What of a message the chat template gets to see."""


async def post_chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    context = request.app[CONTEXT]
    body = await read_object(request)
    fields = validate(ChatRequest, body)
    _check(fields)
    model = answering_model(context, fields.model)
    prompt, signature, continuation = await _render(context, fields, body)
    sampling = sampling_params(fields, logprobs=_logprobs_wanted(fields), default_max_tokens=None)
    plan = Plan(
        endpoint="chat",
        prompts=[prompt.tokens],
        sampling=sampling,
        session=session_of(fields),
        stream=bool(fields.stream),
        prompt_param="messages",
        template_signature=signature,
        boundaries=prompt.boundaries,
        continuation=continuation,
    )
    streams = start(request, plan)
    envelope = Envelope(f"chatcmpl-{request[REQUEST_ID]}", int(context.wall()), model)
    if fields.stream:
        writer = _ChatChunks(
            envelope,
            len(sampling),
            logprobs=bool(fields.logprobs),
            include_usage=fields.include_usage,
        )
        return await stream_events(request, streams, writer, len(sampling))
    choices, usage = await gather(context, streams, len(sampling))
    return web.json_response(_answer(envelope, choices, usage, logprobs=bool(fields.logprobs)))


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


async def _render(
    context: ApiContext, fields: ChatRequest, body: dict[str, Any]
) -> tuple[RenderedPrompt, str, Continuation]:
    """The prompt, the signature of how it was rendered, and how the conversation goes on.

    The body as it was sent goes to the template: the order of a tool's keys is part of the prompt.
    """
    codec = context.text()
    messages = [
        {name: message[name] for name in _MESSAGE_FIELDS if message.get(name) is not None}
        for message in body["messages"]
    ]
    tools, kwargs = body.get("tools") or None, body.get("chat_template_kwargs")
    continued = bool(fields.continue_final_message)
    generation_prompt = (
        not continued if fields.add_generation_prompt is None else fields.add_generation_prompt
    )

    def render() -> tuple[RenderedPrompt, str, Continuation]:
        prompt = codec.render_chat(
            messages,
            tools=tools,
            template_kwargs=kwargs,
            add_generation_prompt=generation_prompt,
            continue_final_message=continued,
            with_boundaries=context.keeps_snapshots,
        )
        signature = codec.template_signature(
            tools=tools, tool_choice=body.get("tool_choice"), template_kwargs=kwargs
        )
        continuation = Continuation(
            codec,
            prompt,
            messages,
            tools=tools,
            template_kwargs=kwargs,
            continues=continued,
        )
        return prompt, signature, continuation

    try:
        # Never on the loop: it would wait for the tokenizer's lock behind a long prompt.
        return await asyncio.get_running_loop().run_in_executor(context.worker, render)
    except ChatTemplateError as error:
        about_kwargs = str(error).startswith("chat_template_kwargs")
        param = "chat_template_kwargs" if about_kwargs else "messages"
        raise invalid(param, str(error), code="chat_template_error") from None


def _answer(
    envelope: Envelope, choices: Sequence[Choice], usage: Usage, *, logprobs: bool
) -> dict[str, Any]:
    return {
        **envelope.head("chat.completion"),
        "choices": [
            {
                "index": index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": chat_logprobs(choice.logprobs) if logprobs else None,
                "finish_reason": choice.reason,
            }
            for index, choice in enumerate(choices)
        ],
        "usage": usage_object(usage),
    }


class _ChatChunks:
    """The chunks of a chat stream: the role first, then text, then why it ended."""

    def __init__(
        self, envelope: Envelope, choices: int, *, logprobs: bool, include_usage: bool
    ) -> None:
        self._frame = ChunkFrame(envelope, "chat.completion.chunk", include_usage=include_usage)
        self._choices = choices
        self._logprobs = logprobs

    def opening(self) -> str:
        delta = '{"role": "assistant", "content": "", "refusal": null}'
        return "".join(self._chunk(i, delta, "null", "null") for i in range(self._choices))

    def delta(self, index: int, text: str, logprobs: Sequence[TokenLogprob]) -> str:
        shown = json.dumps(chat_logprobs(logprobs)) if self._logprobs else "null"
        return self._chunk(index, f'{{"content": {json.dumps(text)}}}', shown, "null")

    def finish(self, index: int, reason: str) -> str:
        return self._chunk(index, "{}", "null", f'"{reason}"')

    def usage(self, usage: Usage) -> str:
        return self._frame.usage(usage)

    def _chunk(self, index: int, delta: str, logprobs: str, reason: str) -> str:
        return self._frame.choice(
            f'{{"index": {index}, "delta": {delta}, "logprobs": {logprobs},'
            f' "finish_reason": {reason}}}'
        )
