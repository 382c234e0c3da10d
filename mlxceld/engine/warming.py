"""Prefilling a prompt ahead of its first request. No MLX in here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxceld.engine.events import Failed, Finished, FinishReason
from mlxceld.engine.request import GenerationRequest, SamplingParams
from mlxceld.models.boundaries import Boundary

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


def warm_request(
    request_id: str,
    tokens: Sequence[int],
    *,
    session: str,
    template_signature: str,
    boundaries: tuple[Boundary, ...],
) -> GenerationRequest:
    """The request that computes a prompt, keeps its states at ``boundaries``, and little else."""
    return GenerationRequest(
        id=request_id,
        tokens=tokens,
        sampling=SamplingParams(temperature=0.0, max_tokens=1),
        session=session,
        template_signature=template_signature,
        endpoint=ENDPOINT,
        background=True,
        boundaries=boundaries,
    )


async def warm(
    engine: EngineClient, request: GenerationRequest, *, kept_tokens: int, pin: bool
) -> Warmed:
    """Compute and store a prompt's first ``kept_tokens``, and pin them if asked to.

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
    kept = request.tokens[:kept_tokens]
    report = await asyncio.wrap_future(
        engine.cache.pin(kept, request.session, request.template_signature, keep=pin)
    )
    seconds = end.prefill_seconds + end.queue_seconds
    return Warmed(request.id, kept_tokens, end.usage.cached_tokens, seconds, report.digest, pin)
