"""The requests that are being answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web


class InFlight:
    """Counts the public API's requests, each until its answer is sent."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Count one request."""
        self._count += 1
        self._none.clear()
        try:
            return await handler(request)
        finally:
            self._count -= 1
            if not self._count:
                self._none.set()

    @property
    def count(self) -> int:
        """How many there are."""
        return self._count

    async def over(self) -> None:
        """Return when there is none."""
        await self._none.wait()
