"""An application's server, which answers also what is no HTTP in the application's own shape."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from aiohttp import web

from mlxceld.web.connections import Connections

Envelope = Callable[[int, str], web.Response]
"""A whole refusal, from its status and a sentence."""

SILENT_SECONDS = 60.0
"""How long a new connection may go without a whole request header."""


class RefusalListener(Protocol):
    """Takes note of what was refused before it got to the application."""

    def __call__(self, request: web.BaseRequest, status: int, code: str, *, reason: str) -> None:
        """One refusal, with the code that clients see and what was wrong."""


class _Protocol(web.RequestHandler):
    __slots__ = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Give a first request less time than aiohttp gives the next ones."""
        super().connection_made(transport)
        if self._keepalive_handle is not None and self._keepalive_timeout > SILENT_SECONDS:
            self._keepalive_handle.cancel()
            self._next_keepalive_close_time = self._loop.time() + SILENT_SECONDS
            self._keepalive_handle = self._loop.call_at(
                self._next_keepalive_close_time, self._process_keepalive
            )
        server = self._manager
        if isinstance(server, _Server) and server.open_connections is not None:
            server.open_connections.add(self, transport.get_extra_info("socket").fileno())

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count the connection no longer."""
        server = self._manager
        if isinstance(server, _Server) and server.open_connections is not None:
            server.open_connections.discard(self)
        super().connection_lost(exc)

    @property
    def silent(self) -> bool:
        """Whether no request that was sent whole is being answered."""
        if self._messages:
            return False
        request = self._current_request
        return not self._request_in_progress or (
            request is not None and not request.content.is_eof()
        )

    def abort(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what could not be read as a request: there is no application to ask yet."""
        server = self._manager
        if not isinstance(server, _Server):
            return super().handle_error(request, status, exc, message)
        reason = ""
        if status < 500 and message:
            reason = message.strip().partition("\n")[0].rstrip(":")
        if status < 500 and server.refused is not None and not request.writer.output_size:
            server.refused(request, status, "bad_request", reason=reason)
        else:
            # Also logs, and raises where an answer has begun.
            super().handle_error(request, status, exc, message)
        text = "the request is not valid HTTP" if status < 500 else "the daemon failed"
        return server.answer(status, f"{text}: {reason}" if reason else text)


class _Server(web.Server):
    envelope: Envelope
    refused: RefusalListener | None
    open_connections: Connections | None

    def __call__(self) -> web.RequestHandler:
        return _Protocol(self, loop=self._loop, **self._kwargs)

    def answer(self, status: int, text: str) -> web.Response:
        """A refusal after which the connection is closed."""
        answer = self.envelope(status, text)
        answer.headers["X-Request-Id"] = uuid.uuid4().hex
        answer.headers["Cache-Control"] = "no-store"
        answer.force_close()
        return answer


class Runner(web.AppRunner):
    """As aiohttp's, with ``envelope`` for what does not get as far as the application.

    ``refused`` is told of it; without a listener it is logged. ``connections`` is told which are
    open.
    """

    def __init__(
        self,
        app: web.Application,
        envelope: Envelope,
        *,
        refused: RefusalListener | None = None,
        connections: Connections | None = None,
        **options: Any,
    ) -> None:
        super().__init__(app, **options)
        self._envelope = envelope
        self._refused = refused
        self._connections = connections

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        # aiohttp makes the server itself and takes no class for it; this one only adds.
        server.__class__ = _Server
        assert isinstance(server, _Server)
        server.envelope = self._envelope
        server.refused = self._refused
        server.open_connections = self._connections
        server.request_handler = _with_envelope(server, server.request_handler)
        return server


def _with_envelope(server: _Server, handler: Callable[..., Any]) -> Callable[..., Any]:
    """``handler``, an application's, with the envelope also for an Expect header it refuses.

    aiohttp looks at that header before any middleware runs.
    """

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        try:
            response: web.StreamResponse = await handler(request)
        except web.HTTPExpectationFailed:
            text = f"Expect is {request.headers.get('Expect')!r}, expected 100-continue"
            if server.refused is not None:
                server.refused(request, 417, "unsupported_expectation", reason=text)
            return server.answer(417, text)
        return response

    return handle
