"""An application's server, which answers also what is no HTTP in the application's own shape."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from aiohttp import web

Envelope = Callable[[int, str], web.Response]
"""A whole refusal, from its status and a sentence."""


class _Protocol(web.RequestHandler):
    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what could not be read as a request: there is no application to ask yet."""
        # Also logs, and raises where an answer has begun.
        plain = super().handle_error(request, status, exc, message)
        server = self._manager
        if not isinstance(server, _Server):
            return plain
        text = "the request is not valid HTTP" if status < 500 else "the daemon failed"
        if status < 500 and message and (first := message.strip().splitlines()[0].rstrip(":")):
            text += f": {first}"
        answer = server.envelope(status, text)
        answer.headers["X-Request-Id"] = uuid.uuid4().hex
        answer.headers["Cache-Control"] = "no-store"
        answer.force_close()
        return answer


class _Server(web.Server):
    envelope: Envelope

    def __call__(self) -> web.RequestHandler:
        return _Protocol(self, loop=self._loop, **self._kwargs)


class Runner(web.AppRunner):
    """As aiohttp's, with ``envelope`` for what does not get as far as the application."""

    def __init__(self, app: web.Application, envelope: Envelope, **options: Any) -> None:
        super().__init__(app, **options)
        self._envelope = envelope

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        # aiohttp makes the server itself and takes no class for it; this one only adds.
        server.__class__ = _Server
        assert isinstance(server, _Server)
        server.envelope = self._envelope
        return server
