"""The open connections of the public listeners, and which of them make room for newer ones."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)

_QUIET_SECONDS = 10.0
"""Between two lines about the same: a flood of connections must not become one of lines."""


class Connection(Protocol):
    """One open connection."""

    @property
    def silent(self) -> bool:
        """Whether no whole request has come over it that is still to be answered."""

    def abort(self) -> None:
        """Close it, on the event loop's next turn."""


class Connections:
    """Keeps connections from taking the last files that the process may open.

    The lowest free number is what the system gives a new file, so a connection whose number is at
    the ``ceiling`` or above tells that only the reserve is left. As long as there is one, the
    silent connection that was opened first is closed for each new one; where none is silent, the
    new one is.
    """

    def __init__(
        self, ceiling: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ceiling = ceiling
        self._clock = clock
        self._open: dict[Connection, int] = {}
        self._above: set[int] = set()
        self._closing: set[Connection] = set()
        self._quiet_until = float("-inf")

    def add(self, connection: Connection, number: int) -> None:
        """A connection was made; ``number`` is its file's."""
        self._open[connection] = number

    def discard(self, connection: Connection) -> None:
        """A connection has ended."""
        self._above.discard(self._open.pop(connection, -1))
        self._closing.discard(connection)

    @property
    def settled(self) -> bool:
        """Whether what was to be closed is closed; until then nothing is accepted."""
        return not self._closing

    def admit(self, number: int) -> bool:
        """Whether the new connection with this file number may stay."""
        if number < self._ceiling() and not self._above:
            return True
        found = next((one for one in self._open if one.silent), None)
        if found is None:
            self._say("no files are left for connections: new ones are closed at once")
            return False
        self._say("few files are left: silent connections are closed for new ones")
        if number >= self._ceiling():
            self._above.add(number)
        self._closing.add(found)
        found.abort()
        return True

    def _say(self, line: str) -> None:
        now = self._clock()
        if now >= self._quiet_until:
            self._quiet_until = now + _QUIET_SECONDS
            log.warning("%s (%d are open); raise the limit of open files", line, len(self._open))
