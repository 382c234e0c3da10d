"""Server-sent events: one write for all that came since the last, comments in long silences."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Protocol

from aiohttp import web

from mlxceld.api.context import CONTEXT, REQUEST_ID, ApiContext
from mlxceld.api.errors import ApiError, internal_error
from mlxceld.api.generation import EventGroup, UsageSum, finish_reason
from mlxceld.engine.events import Delta, Event, Finished, PrefillProgress, TokenLogprob, Usage
from mlxceld.engine.stream import EventStream

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    # Proxies that gather responses would make a stream one block.
    "X-Accel-Buffering": "no",
}

log = logging.getLogger(__name__)


class ChunkWriter(Protocol):
    """Writes one API's chunks, each a whole ``data:`` event or nothing."""

    def opening(self) -> str:
        """What a stream begins with."""

    def delta(self, index: int, text: str, logprobs: Sequence[TokenLogprob]) -> str:
        """More of a choice."""

    def progress(self, progress: PrefillProgress) -> str:
        """The prompt is being computed."""

    def keep_alive(self, progress: PrefillProgress | None) -> str:
        """What breaks a long silence."""

    def finish(self, index: int, reason: str, stop_text: str | None) -> str:
        """The end of a choice, and the stop string that was met, if one was."""

    def closing(self, usage: Usage) -> str:
        """What a stream ends with."""

    def failure(self, error: ApiError) -> str:
        """What a stream ends with instead, when it fails."""


async def stream_events(
    request: web.Request,
    streams: Sequence[EventStream],
    writer: ChunkWriter,
    choices_per_prompt: int,
) -> web.StreamResponse:
    """Tell a request's events until the last.

    A client that reads slowly makes only itself wait: its events gather meanwhile and go out as
    one. One that leaves has its sequences cancelled.
    """
    context = request.app[CONTEXT]
    response = web.StreamResponse(headers=_HEADERS)
    async with EventGroup(streams) as group:
        try:
            await response.prepare(request)
            try:
                await _tell(response, context, group, writer, UsageSum(choices_per_prompt))
            except ApiError as error:
                await response.write(writer.failure(error).encode())
            except ConnectionError:
                raise
            except Exception:
                log.exception("the stream of request %s failed", request[REQUEST_ID])
                await response.write(writer.failure(internal_error()).encode())
        except ConnectionError:
            log.debug("the client of request %s has left", request[REQUEST_ID])
    return response


async def _tell(
    response: web.StreamResponse,
    context: ApiContext,
    group: EventGroup,
    writer: ChunkWriter,
    usage: UsageSum,
) -> None:
    loop = asyncio.get_running_loop()
    progress: PrefillProgress | None = None
    if opening := writer.opening():
        await response.write(opening.encode())
    silent_since = loop.time()
    while not group.over:
        events = await group.take(silent_since + context.keep_alive)
        for _, event in events:
            if isinstance(event, PrefillProgress):
                progress = event
                if begun := writer.progress(event):
                    await response.write(begun.encode())
            elif isinstance(event, Delta):
                progress = None
        text, error = _chunks(context, events, writer, usage)
        if not text and error is None and loop.time() >= silent_since + context.keep_alive:
            text = writer.keep_alive(progress)
        if text:
            await response.write(text.encode())
            silent_since = loop.time()
        if error is not None:
            raise error
    await response.write(writer.closing(usage.total).encode())


def _chunks(
    context: ApiContext,
    events: Sequence[tuple[int, Event]],
    writer: ChunkWriter,
    usage: UsageSum,
) -> tuple[str, ApiError | None]:
    """The chunks of some events, neighbouring deltas of a choice as one; the error that ends it."""
    if len(events) == 1 and isinstance(events[0][1], Delta):
        # A reader that keeps up: every token comes this way.
        return _delta(writer, events[0][0], [events[0][1]]), None
    written: list[str] = []
    pending: dict[int, list[Delta]] = {}
    error = None
    for index, event in events:
        if isinstance(event, Delta):
            pending.setdefault(index, []).append(event)
        elif not isinstance(event, PrefillProgress):
            written.append(_delta(writer, index, pending.pop(index, ())))
            try:
                reason = finish_reason(context, event)
                stop_text = event.stop_text if isinstance(event, Finished) else None
                written.append(writer.finish(index, reason, stop_text))
            except ApiError as ended:
                error = ended
                break
            usage.add(index, event.usage)
    written += [_delta(writer, index, deltas) for index, deltas in pending.items()]
    return "".join(written), error


def _delta(writer: ChunkWriter, index: int, deltas: Sequence[Delta]) -> str:
    """Some deltas of a choice as one chunk; nothing if they say nothing."""
    text = "".join([delta.text for delta in deltas])
    logprobs = [one for delta in deltas for one in delta.logprobs]
    return writer.delta(index, text, logprobs) if text or logprobs else ""


def comment(progress: PrefillProgress | None) -> str:
    """Clients skip comments; they keep proxies and time limits from closing a silent stream."""
    if progress is None:
        return ": waiting\n\n"
    return f": prefill {progress.done}/{progress.total}\n\n"


class OpenAiStream:
    """What OpenAI's two streams have in common: comments in silence, the error as data, a DONE."""

    def progress(self, progress: PrefillProgress) -> str:
        """See :class:`ChunkWriter`."""
        return ""

    def keep_alive(self, progress: PrefillProgress | None) -> str:
        """See :class:`ChunkWriter`."""
        return comment(progress)

    def usage(self, usage: Usage) -> str:
        """The token counts, if they were asked for."""
        return ""

    def closing(self, usage: Usage) -> str:
        """See :class:`ChunkWriter`."""
        return self.usage(usage) + "data: [DONE]\n\n"

    def failure(self, error: ApiError) -> str:
        """See :class:`ChunkWriter`."""
        return f"data: {json.dumps(error.envelope())}\n\n"
