"""``GET trace/stream``: the cache's events as they happen, as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import asdict, dataclass, field

from aiohttp import web

from mlxceld.admin.context import CONTEXT, REQUEST_ID
from mlxceld.admin.trace import tail_length
from mlxceld.prompt_cache.reports import TraceEvent
from mlxceld.prompt_cache.trace_feed import Item, Lost, Switched, TraceFeed

KEEP_ALIVE_SECONDS = 15.0
"""A stream is silent no longer than this: then a comment is sent."""

_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}


@dataclass(slots=True, eq=False)
class _Stream:
    """One open stream: ``news`` wakes it, ``over`` ends it."""

    news: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False


_OPEN: web.AppKey[set[_Stream]] = web.AppKey("trace_streams", set)


def register(app: web.Application, prefix: str) -> None:
    """Add the route; its streams end when the application shuts down."""
    app[_OPEN] = set()
    app.on_shutdown.append(_end_streams)
    app.add_routes([web.get(f"{prefix}/trace/stream", get_trace_stream)])


async def get_trace_stream(request: web.Request) -> web.StreamResponse:
    """The last ``n`` events (0), whether the trace is on, then what is traced, until either leaves.

    While the trace is off nothing comes; it may be switched meanwhile. A client that reads too
    slowly misses events and is told how many; nobody waits for it.
    """
    count = tail_length(request, default=0)
    engine = request.app[CONTEXT].engine
    loop = asyncio.get_running_loop()
    stream = _Stream()

    def wake() -> None:
        # The loop may have ended by the time that the engine's thread has something to tell.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(stream.news.set)

    response = web.StreamResponse(headers={**_HEADERS, "X-Request-Id": request[REQUEST_ID]})
    feed = engine.cache.follow_trace(wake)
    request.app[_OPEN].add(stream)
    try:
        backlog = engine.cache.trace_tail(count)
        opening: list[Item] = [*backlog, Switched(engine.status.trace_enabled)]
        await response.prepare(request)
        await response.write("".join(map(_event, opening)).encode())
        await _follow(response, feed, stream, backlog)
    except ConnectionError:
        pass
    finally:
        feed.close()
        request.app[_OPEN].discard(stream)
    return response


async def _follow(
    response: web.StreamResponse, feed: TraceFeed, stream: _Stream, backlog: list[TraceEvent]
) -> None:
    shown = set(map(id, backlog))
    while not stream.over:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                await stream.news.wait()
        stream.news.clear()
        # What happened between subscribing and reading the tail is in both.
        items = [item for item in feed.take() if id(item) not in shown]
        await response.write("".join(map(_event, items)).encode() or b": waiting\n\n")


async def _end_streams(app: web.Application) -> None:
    streams: set[_Stream] = app[_OPEN]
    for stream in streams:
        stream.over = True
        stream.news.set()


def _event(item: Item) -> str:
    if isinstance(item, Switched):
        return f"event: trace\ndata: {json.dumps({'enabled': item.enabled})}\n\n"
    if isinstance(item, Lost):
        return f"event: dropped\ndata: {json.dumps({'count': item.count})}\n\n"
    return f"data: {json.dumps(asdict(item))}\n\n"
