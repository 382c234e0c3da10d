"""Telling systemd how the daemon does, over the socket that it names.

Under no manager, or another one, nothing is sent.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping

log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 5.0
"""How long a word that the manager must not miss may wait for room in its queue."""


class Notifier:
    """Sends the manager's datagrams; with ``address`` None it does nothing.

    ``watchdog_seconds`` is how often the manager wants to hear that all is well, None if it does
    not ask.
    """

    def __init__(self, address: str | None, watchdog_seconds: float | None = None) -> None:
        self._address = address
        self._complained = False
        self.watchdog_seconds = watchdog_seconds if address else None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Notifier:
        """The notifier that the environment asks for.

        A watchdog that is meant for another process, as a child inherits it, is not ours.
        """
        environ = os.environ if environ is None else environ
        period = environ.get("WATCHDOG_USEC", "")
        ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        asked = ours and period.isdecimal() and int(period) > 0
        return cls(environ.get("NOTIFY_SOCKET") or None, int(period) / 1e6 if asked else None)

    def ready(self, status: str) -> None:
        """The daemon serves, or has finished reloading."""
        self._send("READY=1", _status(status), wait=True)

    def status(self, status: str) -> None:
        """What the daemon is at, as the manager shows it."""
        self._send(_status(status))

    def extend(self, seconds: float, status: str) -> None:
        """The start or stop gets on, and needs up to ``seconds`` more until the next such word."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}", _status(status))

    def reloading(self) -> None:
        """A reload begins; :meth:`ready` ends it."""
        # The time is how the manager tells this reload's READY from an earlier one.
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", wait=True)

    def stopping(self, status: str) -> None:
        """The daemon begins to stop."""
        self._send("STOPPING=1", _status(status), wait=True)

    def watchdog(self) -> None:
        """All is well."""
        self._send("WATCHDOG=1")

    def _send(self, *lines: str, wait: bool = False) -> None:
        """Send one datagram; with ``wait``, until there is room for it, within limits.

        A queue holds ten of them on a plain Linux. Whatever is repeated anyway may be lost when
        it is full, so that a manager that does not read does not stop the daemon.
        """
        if self._address is None:
            return
        # A leading @ stands for the NUL of an abstract name.
        name = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.settimeout(_PATIENCE_SECONDS if wait else 0.0)
                sock.sendto("\n".join(lines).encode(), name)
        except BlockingIOError:
            log.debug("the service manager at %s does not read; a word was lost", self._address)
        except OSError as error:
            if not self._complained:
                self._complained = True
                log.warning("cannot notify the service manager at %s: %s", self._address, error)


def _status(text: str) -> str:
    return "STATUS=" + " ".join(text.split())
