"""The daemon's own log file, where its standard error goes to one: rotated when it is large."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from mlxceld.config.folders import open_own
from mlxceld.telemetry.log_writer import Write, write_to

MAX_BYTES = 16 * 1024 * 1024
"""A log file that has grown to this is put aside."""

KEPT = 5
"""How many files that were put aside are kept: ``mlxceld.log.1`` is the newest."""


def own_log_file(
    fd: int, log_file: Path, environ: Mapping[str, str], *, platform: str = sys.platform
) -> Path | None:
    """The file behind ``fd`` if it is the daemon's own to rotate; else None.

    It is where the daemon was detached, whose output goes to ``log_file``, and where launchd
    started it, which rotates nothing. Any other file is the business of who opened it.
    """
    if _is_open_as(fd, log_file):
        return log_file
    if platform == "darwin" and "XPC_SERVICE_NAME" in environ:
        path = _path_of(fd)
        if path is not None and _is_open_as(fd, path):
            return path
    return None


class RotatingWrite:
    """Writes to ``fd`` and, when its file has ``max_bytes``, goes on in a new one under its name.

    The descriptor itself is made to lead to the new file, and standard output with it if that led
    to the same: what a crash prints lands there too. A file that was moved away is left alone, and
    the next line begins a new one in its place.
    """

    def __init__(
        self, fd: int, path: Path, *, max_bytes: int = MAX_BYTES, kept: int = KEPT
    ) -> None:
        self._fd = fd
        self._path = path
        self._max_bytes = max_bytes
        self._kept = kept
        self._write: Write = write_to(fd)

    def __call__(self, data: bytes) -> None:
        """Write lines; raises OSError."""
        moved = not _is_open_as(self._fd, self._path)
        if moved or os.fstat(self._fd).st_size >= self._max_bytes:
            # Where it cannot be rotated it grows on: a line is worth more than its limit.
            with contextlib.suppress(OSError):
                self._begin_anew(put_aside=not moved)
        self._write(data)

    def _begin_anew(self, *, put_aside: bool) -> None:
        mode = os.fstat(self._fd).st_mode & 0o777
        also_stdout = self._fd == 2 and _is_same(1, self._fd)
        if put_aside:
            for number in range(self._kept, 0, -1):
                source = self._aside(number - 1) if number > 1 else self._path
                with contextlib.suppress(FileNotFoundError):
                    source.replace(self._aside(number))
        new = open_own(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.fchmod(new, mode)
            os.dup2(new, self._fd)
            if also_stdout:
                os.dup2(new, 1)
        finally:
            os.close(new)

    def _aside(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def _is_open_as(fd: int, path: Path) -> bool:
    """Whether a descriptor leads to the file that has this name now."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def _is_same(one: int, other: int) -> bool:
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:
        return False


def _path_of(fd: int) -> Path | None:
    """The name under which a descriptor's file was opened, as macOS tells it."""
    command = getattr(fcntl, "F_GETPATH", None)
    if command is None:
        return None
    try:
        raw: bytes = fcntl.fcntl(fd, command, bytes(1024))
    except OSError:
        return None
    return Path(os.fsdecode(raw.partition(b"\0")[0]))
