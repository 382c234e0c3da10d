"""Starts a request's sequences and brings their events together, whatever the API's form."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from aiohttp import web

from mlxceld.api.context import CLIENT, CONTEXT, REQUEST_ID, ApiContext
from mlxceld.api.errors import cancelled, from_engine, from_failure, invalid, timed_out
from mlxceld.api.refusals import SUBMITTED
from mlxceld.api.time_limit import seconds_left
from mlxceld.engine.errors import EngineError, InvalidRequestError
from mlxceld.engine.events import (
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    TokenLogprob,
    Usage,
)
from mlxceld.engine.request import (
    RAW_PROMPT_SIGNATURE,
    ConstraintSpec,
    ContinuationSpec,
    GenerationRequest,
    SamplingParams,
)
from mlxceld.engine.stream import EventStream, Wakeup
from mlxceld.models.boundaries import Boundary

if TYPE_CHECKING:
    from mlxceld.api.prepare import Prepared


@dataclass(frozen=True, slots=True)
class Plan:
    """What to generate: for every prompt one choice for each of ``sampling``.

    Choices are numbered prompt by prompt. ``prompt_param`` is the field that errors about the
    prompt name. ``boundaries`` and ``continuation`` are those of the only prompt; several
    have none.
    ``constraint`` is what each answer has to fit; ``shown_tokens`` are special tokens whose
    names are to be part of the text.
    """

    endpoint: str
    prompts: Sequence[Sequence[int]]
    sampling: Sequence[SamplingParams]
    session: str
    stream: bool
    prompt_param: str
    template_signature: str = RAW_PROMPT_SIGNATURE
    boundaries: tuple[Boundary, ...] = ()
    continuation: ContinuationSpec | None = None
    constraint: ConstraintSpec | None = None
    shown_tokens: frozenset[int] = frozenset()


@dataclass(slots=True)
class Choice:
    """One finished answer."""

    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: str = ""
    stop_text: str | None = None


class EventGroup:
    """The events of a request's sequences in one place; leaving it cancels those that still run.

    Use as an asynchronous context manager. Waiting for an event costs one future: the timer for
    silences runs on from event to event and looks at the time when it goes off.
    """

    def __init__(self, streams: Sequence[EventStream]) -> None:
        self._streams = streams
        self._loop = asyncio.get_running_loop()
        self._bell = Wakeup()
        self._timer: asyncio.TimerHandle | None = None
        self._until = math.inf

    async def __aenter__(self) -> Self:
        for stream in self._streams:
            stream.share(self._bell)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for stream in self._streams:
            stream.cancel()
        if self._timer is not None:
            self._timer.cancel()

    @property
    def over(self) -> bool:
        """Whether the last event has been taken."""
        return all(stream.over for stream in self._streams)

    async def take(self, until: float = math.inf) -> list[tuple[int, Event]]:
        """All events that have come, each with its choice's number; waits for the first.

        Those of a choice are in their order. Empty if none came before ``until``, a time of the
        event loop's clock in seconds, which must not lie before that of an earlier call.
        """
        while not (events := self._arrived()):
            if self._loop.time() >= until:
                break
            self._until = until
            if self._timer is None and until < math.inf:
                self._timer = self._loop.call_at(until, self._look_at_the_time)
            await self._bell.wait()
        return events

    def _arrived(self) -> list[tuple[int, Event]]:
        return [
            (index, event) for index, stream in enumerate(self._streams) for event in stream.drain()
        ]

    def _look_at_the_time(self) -> None:
        self._timer = None
        if self._loop.time() >= self._until:
            self._bell.ring()
        else:
            self._timer = self._loop.call_at(self._until, self._look_at_the_time)


class UsageSum:
    """The token counts of a whole request: a prompt counts once, whatever its choices."""

    def __init__(self, choices_per_prompt: int) -> None:
        self._per_prompt = choices_per_prompt
        self._prompt = self._completion = self._cached = 0

    def add(self, choice: int, usage: Usage) -> None:
        """Count a finished choice."""
        self._completion += usage.completion_tokens
        if choice % self._per_prompt == 0:
            self._prompt += usage.prompt_tokens
            self._cached += usage.cached_tokens

    @property
    def total(self) -> Usage:
        """The counts so far."""
        return Usage(self._prompt, self._completion, self._cached)


def plan_of(
    prepared: Prepared,
    *,
    endpoint: str,
    sampling: Sequence[SamplingParams],
    session: str,
    stream: bool,
    prompt_param: str,
) -> Plan:
    """The plan for a prepared turn: one choice for each of ``sampling``."""
    return Plan(
        endpoint=endpoint,
        prompts=[prepared.prompt.tokens],
        sampling=sampling,
        session=session,
        stream=stream,
        prompt_param=prompt_param,
        template_signature=prepared.signature,
        boundaries=prepared.prompt.boundaries,
        continuation=prepared.continuation,
        constraint=prepared.constraint,
        shown_tokens=prepared.shown_tokens,
    )


def start(request: web.Request, plan: Plan) -> list[EventStream]:
    """Queue all of a plan's sequences or none; raises ApiError."""
    context = request.app[CONTEXT]
    count = len(plan.prompts) * len(plan.sampling)
    room = context.settings.max_queue + context.settings.max_batch_size
    if count > room:
        raise invalid(
            plan.prompt_param,
            f"the request asks for {count} choices at once; this server takes up to {room}",
        )
    try:
        try:
            streams = context.engine.submit(_requests(request, plan, request[REQUEST_ID]))
        except InvalidRequestError as error:
            if error.param != "id":
                raise
            # The caller's id is in flight already, as after a retry: the engine needs its own.
            streams = context.engine.submit(_requests(request, plan, context.ids()))
    except EngineError as error:
        raise from_engine(error, prompt_param=plan.prompt_param) from None
    request[SUBMITTED] = True
    return streams


async def gather(
    context: ApiContext, streams: Sequence[EventStream], choices_per_prompt: int
) -> tuple[list[Choice], Usage]:
    """Wait for every choice; raises ApiError if one ends by anything but itself or its limit."""
    texts: list[list[str]] = [[] for _ in streams]
    choices = [Choice() for _ in streams]
    usage = UsageSum(choices_per_prompt)
    async with EventGroup(streams) as group:
        while not group.over:
            for index, event in await group.take():
                if isinstance(event, Delta):
                    texts[index].append(event.text)
                    choices[index].logprobs.extend(event.logprobs)
                elif isinstance(event, Finished | Failed):
                    choices[index].reason = finish_reason(context, event)
                    if isinstance(event, Finished):
                        choices[index].stop_text = event.stop_text
                    usage.add(index, event.usage)
    for choice, parts in zip(choices, texts, strict=True):
        choice.text = "".join(parts)
    return choices, usage.total


def finish_reason(context: ApiContext, event: Finished | Failed) -> str:
    """``stop`` or ``length``; raises the ApiError that any other end means."""
    if isinstance(event, Failed):
        raise from_failure(event)
    if event.reason is FinishReason.CANCELLED:
        raise cancelled()
    if event.reason is FinishReason.TIMEOUT:
        raise timed_out(context.settings.request_timeout)
    return event.reason.value


def _requests(request: web.Request, plan: Plan, request_id: str) -> list[GenerationRequest]:
    several = len(plan.prompts) * len(plan.sampling) > 1
    continuation = plan.continuation
    if continuation is not None and not several:
        # Of several answers nobody knows which one the conversation goes on with.
        continuation = replace(continuation, ahead=True)
    pairs = [(prompt, sampling) for prompt in plan.prompts for sampling in plan.sampling]
    return [
        GenerationRequest(
            id=f"{request_id}-{index}" if several else request_id,
            tokens=prompt,
            sampling=sampling,
            session=plan.session,
            template_signature=plan.template_signature,
            client=request.get(CLIENT),
            endpoint=plan.endpoint,
            stream=plan.stream,
            timeout=seconds_left(request.app[CONTEXT]) or 0.0,
            boundaries=plan.boundaries,
            continuation=continuation,
            constraint=plan.constraint,
            shown_tokens=plan.shown_tokens,
        )
        for index, (prompt, sampling) in enumerate(pairs)
    ]
