"""How a start goes, told to whoever waits for it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Protocol

PATIENCE_SECONDS = 1000.0
"""How long a start may go without a word to those who wait for it."""


class StartReport(Protocol):
    """What the daemon tells while it starts; exactly one of ready and failed ends it."""

    def progress(self, line: str) -> None:
        """The start gets on; one line of text."""

    def ready(self, address: str) -> None:
        """Requests are answered at ``address``."""

    def failed(self, text: str, exit_code: int) -> None:
        """The start is over; ``text`` is for people, ``exit_code`` the process's."""


class ForegroundReport:
    """A start in the foreground: its log tells all but why it ended."""

    def progress(self, line: str) -> None:
        """Nothing: the line is in the log."""

    def ready(self, address: str) -> None:
        """Nothing: the line is in the log."""

    def failed(self, text: str, exit_code: int) -> None:
        """Print the reason."""
        print(f"mlxceld: {text}", file=sys.stderr, flush=True)


class PipeReport:
    """A detached start: one JSON object a line to the process that waits at the other end.

    The first carries the daemon's process id. May be used from any thread, one at a time.
    """

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        self._write({"pid": os.getpid()})

    def progress(self, line: str) -> None:
        """Tell the line."""
        self._write({"progress": line})

    def ready(self, address: str) -> None:
        """Tell the address, and no more."""
        self._write({"ready": address})
        self._close()

    def failed(self, text: str, exit_code: int) -> None:
        """Print the reason to the log too, and tell it.

        The pipe stays open: that it closes tells the other end that the process has ended.
        """
        print(f"mlxceld: {text}", file=sys.stderr, flush=True)
        self._write({"failed": text, "exit_code": exit_code})

    def _write(self, message: dict[str, object]) -> None:
        if self._fd is None:
            return
        try:
            os.write(self._fd, json.dumps(message).encode() + b"\n")
        except OSError:
            # Nobody waits any longer, and the daemon does not depend on it.
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)
