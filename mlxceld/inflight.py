"""The requests that are being answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web


class InFlight:
    """Counts the public API's requests, each from its last byte until its answer is sent.

    One of which a part has yet to come is not running: it may never come.
    """

    def __init__(self) -> None:
        self._arriving: dict[int, web.Request] = {}
        self._running: set[int] = set()
        self._none = asyncio.Event()
        self._none.set()

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Count one request."""
        key = id(request)
        self._arriving[key] = request
        # Called at once where there is nothing more to come.
        request.content.on_eof(lambda: self._arrived(key))
        try:
            return await handler(request)
        finally:
            self._arriving.pop(key, None)
            self._running.discard(key)
            if not self._running:
                self._none.set()

    def _arrived(self, key: int) -> None:
        if self._arriving.pop(key, None) is not None:
            self._running.add(key)
            self._none.clear()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._running)

    async def over(self) -> None:
        """Return when there is none."""
        await self._none.wait()

    def drop_arriving(self) -> int:
        """Close the connections of requests that have not come whole; returns how many."""
        transports = [request.transport for request in self._arriving.values()]
        for transport in transports:
            if transport is not None:
                transport.abort()
        return len(transports)
