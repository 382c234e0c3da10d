"""Prefilling a prompt ahead of its first request. No MLX in here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlxceld.engine.events import Failed, Finished, FinishReason
from mlxceld.engine.request import (
    ANONYMOUS_SESSION,
    RAW_PROMPT_SIGNATURE,
    GenerationRequest,
    SamplingParams,
)
from mlxceld.models.tool_prompt import tool_as_rendered
from mlxceld.models.volatile import drop_volatile_head

if TYPE_CHECKING:
    from mlxceld.engine.client import EngineClient

ENDPOINT = "warm"
"""What requests of this kind are counted and listed as."""


@dataclass(frozen=True, slots=True)
class Warmed:
    """A prompt that is stored: how many of its tokens were so before, and its entry's digest."""

    id: str
    tokens: int
    cached_tokens: int
    seconds: float
    digest: str
    pinned: bool


class WarmError(Exception):
    """The prompt could not be prefilled; the text says why."""


def render(
    engine: EngineClient,
    *,
    request_id: str,
    messages: Sequence[Mapping[str, Any]] | None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    prompt: str | None = None,
    session: str | None = None,
    volatile_heads: bool = True,
) -> GenerationRequest:
    """The request that computes a conversation, or a text, and next to nothing else.

    Rendered as the next request that begins so will be: a conversation whose last message is the
    assistant's, or of system messages only, without the opening of an answer, and with
    ``volatile_heads`` without the lines that change with every request. Raises ChatTemplateError
    or NotReadyError; may take a while for a long text.
    """
    codec = engine.text
    signature = RAW_PROMPT_SIGNATURE
    if messages is not None:
        if volatile_heads:
            messages = drop_volatile_head(messages)[0]
        tools = [tool_as_rendered(tool) for tool in tools] if tools else None
        asks = messages[-1].get("role") in ("user", "tool")
        tokens = codec.render_chat(messages, tools=tools, add_generation_prompt=asks).tokens
        signature = codec.template_signature(tools=tools)
    else:
        tokens = codec.encode(prompt or "", add_special_tokens=True)
    return GenerationRequest(
        id=request_id,
        tokens=tokens,
        sampling=SamplingParams(temperature=0.0, max_tokens=1),
        session=session or ANONYMOUS_SESSION,
        template_signature=signature,
        endpoint=ENDPOINT,
        background=True,
    )


async def warm(engine: EngineClient, request: GenerationRequest, *, pin: bool) -> Warmed:
    """Compute and store a prompt, and pin it if asked to.

    Raises what :meth:`EngineClient.submit` does, WarmError where it fails on the way, and PinError
    where it could not be stored or pinned. Cancelling this cancels the request.
    """
    (stream,) = engine.submit([request])
    try:
        end = None
        async for event in stream:
            end = event
    finally:
        stream.cancel()
    if isinstance(end, Failed):
        raise WarmError(end.message)
    if not isinstance(end, Finished) or end.reason is FinishReason.CANCELLED:
        raise WarmError("it was cancelled")
    # An order of its own, so carried out after the engine has stored what it computed.
    report = await asyncio.wrap_future(engine.pin(request, keep=pin))
    seconds = end.prefill_seconds + end.queue_seconds
    return Warmed(
        request.id, len(request.tokens), end.usage.cached_tokens, seconds, report.digest, pin
    )
