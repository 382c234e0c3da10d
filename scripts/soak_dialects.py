"""Answers of the four generating routes, whole and streamed, as one kind of value.

A stream counts as complete only with all that its API ends with: a stream that merely stops, or
that ends with an error, is told from one that is done.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"

ENDPOINTS = {CHAT: "chat", COMPLETIONS: "completions", MESSAGES: "messages", RESPONSES: "responses"}
"""The routes by the names that log lines and metrics have for them."""


@dataclass
class Answer:
    """What one request was told. ``usage`` is prompt, cached and generated tokens."""

    text: str = ""
    reasons: list[str] = field(default_factory=list)
    usage: tuple[int, int, int] | None = None
    complete: bool = False
    error: str = ""
    response_id: str = ""


def _openai_usage(usage: Event | None) -> tuple[int, int, int] | None:
    if not usage:
        return None
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return usage["prompt_tokens"], cached, usage["completion_tokens"]


def _openai_event(answer: Answer, event: Event) -> None:
    for choice in event.get("choices", ()):
        part = choice["delta"].get("content") if "delta" in choice else choice["text"]
        answer.text += part or ""
        if choice["finish_reason"]:
            answer.reasons.append(choice["finish_reason"])
    answer.usage = _openai_usage(event.get("usage")) or answer.usage


def _openai_whole(answer: Answer, body: Event) -> None:
    for choice in body["choices"]:
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        answer.text += text or ""
        answer.reasons.append(choice["finish_reason"])
    answer.usage = _openai_usage(body["usage"])
    answer.complete = True


def _messages_usage(usage: Event) -> tuple[int, int, int]:
    cached = usage["cache_read_input_tokens"]
    prompt = usage["input_tokens"] + usage["cache_creation_input_tokens"] + cached
    return prompt, cached, usage["output_tokens"]


def _messages_event(answer: Answer, event: Event) -> None:
    match event["type"]:
        case "content_block_delta":
            answer.text += event["delta"].get("text", "")
        case "message_delta":
            answer.reasons.append(event["delta"]["stop_reason"])
            answer.usage = _messages_usage(event["usage"])
        case "message_stop":
            answer.complete = True


def _messages_whole(answer: Answer, body: Event) -> None:
    answer.text = "".join(block.get("text", "") for block in body["content"])
    answer.reasons.append(body["stop_reason"])
    answer.usage = _messages_usage(body["usage"])
    answer.complete = True


def _responses_event(answer: Answer, event: Event) -> None:
    match event["type"]:
        case "response.output_text.delta":
            answer.text += event["delta"]
        case "response.completed" | "response.incomplete":
            text, answer.text = answer.text, ""
            _responses_whole(answer, event["response"])
            if answer.text != text:
                answer.error = "the text of the last event is not that of the deltas"
        case "response.failed":
            answer.error = event["response"]["error"]["code"]


def _responses_whole(answer: Answer, body: Event) -> None:
    for item in body["output"]:
        for part in item.get("content") or ():
            answer.text += part.get("text", "")
    usage = body["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    answer.usage = usage["input_tokens"], cached, usage["output_tokens"]
    answer.reasons.append(body["status"])
    answer.response_id = body["id"]
    answer.complete = True


Reader = Callable[[Answer, Event], None]

READERS: dict[str, tuple[Reader, Reader]] = {
    CHAT: (_openai_event, _openai_whole),
    COMPLETIONS: (_openai_event, _openai_whole),
    MESSAGES: (_messages_event, _messages_whole),
    RESPONSES: (_responses_event, _responses_whole),
}
"""How an event of a stream, and a whole body, of each route is read."""


def read_whole(path: str, body: Event) -> Answer:
    """The answer in a whole response."""
    answer = Answer()
    READERS[path][1](answer, body)
    return answer


async def read_stream(
    path: str, lines: AsyncIterator[bytes], answer: Answer
) -> AsyncIterator[Answer]:
    """Fill ``answer`` from a stream's lines; yields it after each event with data."""
    read = READERS[path][0]
    async for line in lines:
        if not line.startswith(b"data: "):
            continue
        data = line[6:].strip()
        if data == b"[DONE]":
            answer.complete = True
        else:
            event = json.loads(data)
            if "error" in event and event["error"] and event.get("type") in (None, "error"):
                answer.error = event["error"].get("code") or event["error"]["message"]
            else:
                read(answer, event)
        yield answer
