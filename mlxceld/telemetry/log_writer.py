"""Takes log lines without ever waiting, and writes them on a thread of its own.

Whoever reads standard error may stop reading. A full pipe then holds up the writing thread and
nobody else; lines that find no room any more are dropped and counted.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable

QUEUE_BYTES = 4 * 1024 * 1024
"""What may wait to be written."""

Write = Callable[[bytes], None]


class LineWriter:
    """A bounded queue of lines before one ``write``, which may block and raise OSError.

    ``notice`` makes the line that tells how many were dropped, from their number. Every method may
    be called from any thread; none but :meth:`flush` and :meth:`close` waits.
    """

    def __init__(
        self, write: Write, notice: Callable[[int], str], *, limit: int = QUEUE_BYTES
    ) -> None:
        self._write = write
        self._notice = notice
        self._limit = limit
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._waiting = 0
        self._lost = 0
        self._dropped = 0
        self._writing = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """How many lines were dropped so far."""
        return self._dropped

    def put(self, line: str) -> None:
        """Have a line written, or dropped if too much waits already."""
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        with self._changed:
            if self._waiting + len(data) > self._limit:
                self._lost += 1
                self._dropped += 1
                return
            self._lines.append(data)
            self._waiting += len(data)
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until all that was put is written; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._lines or self._lost or self._writing), timeout
            )

    def close(self, timeout: float) -> None:
        """Write what waits, as far as that is possible in time, and end the thread."""
        self.flush(timeout)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._lost or self._closed)
                if not self._lines and not self._lost:
                    return
                batch, lost = b"".join(self._lines), self._lost
                self._lines.clear()
                self._waiting = self._lost = 0
                self._writing = True
            if lost:
                # Those before the gap had room, so this is its place.
                batch += self._notice(lost).encode() + b"\n"
            try:
                self._write(batch)
            except OSError:
                # There is nobody left to tell.
                with self._changed:
                    self._dropped += batch.count(b"\n")
            with self._changed:
                self._writing = False
                self._changed.notify_all()


def write_to(fd: int) -> Write:
    """A write to a descriptor that goes on until all is written.

    Not through Python's own stream: its lock, held in a write that blocks, would make the
    interpreter abort at its end.
    """

    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                select.select([], [fd], [])

    return write
