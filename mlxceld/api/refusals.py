"""Refused requests as the operator sees them: a log line and a counter each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from aiohttp import web

from mlxceld.api.context import CLIENT, REQUEST_ID
from mlxceld.telemetry.logging import REQUEST_LOGGER
from mlxceld.telemetry.refusals import OTHER, RefusalCounts

SUBMITTED: web.RequestKey[bool] = web.RequestKey("submitted", bool)
"""Set once the engine has a request: how it ends is then the engine's to count and to log."""

LINES = 10
"""Lines that refusals of one endpoint, code and client get within a window."""

WINDOW_SECONDS = 60.0

_LONGEST_TEXT = 200

_GENERATING = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/messages": "messages",
    "/v1/responses": "responses",
}

_log = logging.getLogger(REQUEST_LOGGER)


@dataclass(slots=True)
class _Window:
    began: float
    count: int = 0


class Refusals:
    """Counts every refusal, and logs it unless too many of its kind came within a minute.

    Of a storm the first :data:`LINES` are logged one by one, and the rest as one line with their
    number when the window is over. ``clock`` is monotonic, in seconds.
    """

    def __init__(self, counts: RefusalCounts, clock: Callable[[], float] = time.monotonic) -> None:
        self._counts = counts
        self._clock = clock
        self._windows: dict[tuple[str, str, str | None], _Window] = {}

    def record(
        self,
        request: web.BaseRequest,
        status: int,
        code: str | None,
        *,
        param: str | None = None,
        reason: str = "",
    ) -> None:
        """Count and log one refusal; one of a request that the engine has is passed over.

        ``reason`` is for what is not told by code and param: what was no HTTP.
        """
        if request.get(SUBMITTED):
            return
        endpoint = _GENERATING.get(request.path, OTHER)
        code = code or ("invalid_request" if status == 400 else OTHER)
        client = request.get(CLIENT)
        self._counts.add(endpoint, code)
        if not self._has_a_line(endpoint, code, client):
            return
        fields = {
            "id": request.get(REQUEST_ID),
            "route": _short(f"{request.method} {request.path}"),
            "status": status,
            "code": code,
            "param": None if param is None else _short(param),
            "reason": _short(reason) or None,
            "client": client,
            "user_agent": _short(request.headers.get("User-Agent", "")) or None,
        }
        _log.info("refused", extra={"fields": fields})

    def sweep(self, *, over: bool = False) -> None:
        """Log what windows that have passed left unsaid; with ``over`` all windows."""
        now = self._clock()
        for key, window in list(self._windows.items()):
            if over or now - window.began >= WINDOW_SECONDS:
                self._close(key, window)

    def _has_a_line(self, endpoint: str, code: str, client: str | None) -> bool:
        key, now = (endpoint, code, client), self._clock()
        window = self._windows.get(key)
        if window is not None and now - window.began >= WINDOW_SECONDS:
            self._close(key, window)
            window = None
        if window is None:
            window = self._windows[key] = _Window(now)
        window.count += 1
        return window.count <= LINES

    def _close(self, key: tuple[str, str, str | None], window: _Window) -> None:
        del self._windows[key]
        if window.count <= LINES:
            return
        endpoint, code, client = key
        fields = {
            "endpoint": endpoint,
            "code": code,
            "client": client,
            "count": window.count - LINES,
            "seconds": round(self._clock() - window.began, 1),
        }
        _log.info("refused more of the same", extra={"fields": fields})


REFUSALS: web.AppKey[Refusals] = web.AppKey("refusals", Refusals)


async def sweeping(app: web.Application) -> AsyncIterator[None]:
    """A cleanup context: sums of storms are logged once a minute, and at the end."""

    async def sweep() -> None:
        while True:
            await asyncio.sleep(WINDOW_SECONDS)
            app[REFUSALS].sweep()

    task = asyncio.create_task(sweep())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    app[REFUSALS].sweep(over=True)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
