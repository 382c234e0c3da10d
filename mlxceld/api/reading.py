"""How an answer is read, for whoever writes it out and for whoever foretells the next turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from mlxceld.api.allowed_calls import AllowedCalls
from mlxceld.api.harmony import HarmonyReader
from mlxceld.api.parts import Answer
from mlxceld.api.reader import AnswerReader, MarkedReader, Reading
from mlxceld.engine.request import ReplySpec
from mlxceld.models.calls import HERMES
from mlxceld.models.text import TextCodec

_CALL_ID = "call00001"
"""Stands for the id of a call where a reply is only read to render it again."""


def reading_of(
    codec: TextCodec,
    reply: ReplySpec,
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    begun: bool = False,
) -> Reading:
    """How a model's replies are read; ``begun`` says that the prompt has begun this one."""
    form = codec.output_format
    calls = None
    if tools:
        calls = (form.calls or HERMES) if codec.renders_tools or form.harmony else HERMES
    return Reading(
        thinking=form.thinking,
        calls=calls,
        tools=tools or (),
        harmony=form.harmony,
        forced=reply.forced,
        in_reasoning=reply.in_reasoning,
        begun=begun,
        opened=reply.opened,
        parallel=reply.parallel,
    )


def reader_of(
    reading: Reading, allowed: Collection[str] | None, new_id: Callable[[], str]
) -> AnswerReader:
    """A reader for one answer; ``new_id`` makes ids of calls."""
    kind = HarmonyReader if reading.harmony else MarkedReader
    reader: AnswerReader = kind(reading, new_id)
    return reader if allowed is None else AllowedCalls(reader, frozenset(allowed))


def reply_message(
    codec: TextCodec,
    reply: ReplySpec,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    text: str,
) -> dict[str, Any]:
    """A reply's whole text as the message that the client will send back, as far as can be told.

    With what was thought only where the client did so before.
    """
    reader = reader_of(reading_of(codec, reply, tools), reply.allowed, lambda: _CALL_ID)
    answer = Answer.of([*reader.push(text), *reader.finish()])
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.reasoning and any(one.get("reasoning_content") for one in messages):
        message["reasoning_content"] = answer.reasoning
    if calls := answer.whole_calls():
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]
    return message
