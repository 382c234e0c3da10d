"""The event loop's complaints when connections cannot be taken, told once in a while."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Any

log = logging.getLogger(__name__)

_SILENT_SECONDS = 10.0

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_RESUME = "._start_serving("
"""In the loop's report of a timer that it sets when it cannot accept."""


class ExhaustionHandler:
    """An event loop's exception handler; all that is not about exhaustion goes the usual way.

    While files have run out the loop reports every attempt to accept, a backlog of them each
    second and each with its traceback: the log would fill, and with it perhaps the disk.
    """

    def __init__(self) -> None:
        self._silent_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take one report of ``loop``."""
        error = context.get("exception")
        if isinstance(error, ValueError) and _RESUME in str(context.get("message")):
            # The loop wants to accept again, once for each failure, and the socket is closed.
            return
        exhausted = isinstance(error, OSError) and error.errno in _EXHAUSTED
        if not (exhausted and "socket" in context):
            loop.default_exception_handler(context)
        elif (now := loop.time()) >= self._silent_until:
            self._silent_until = now + _SILENT_SECONDS
            log.error("new connections have to wait: %s", error)
