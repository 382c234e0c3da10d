"""Standard error as a file that log rotation may move away."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from pathlib import Path

from mlxceld.config.folders import open_own

_F_GETPATH = 50
"""macOS: the path of an open file; the fcntl module has a name for it there only."""

_PATH_BYTES = 1024


class StderrFile:
    """Follows the path that standard error was opened at, when what lies there is another file.

    launchd, newsyslog and logrotate move a log away and leave the process with the old file. Where
    standard error is no regular file there is nothing to follow.
    """

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self.path = _path_of(fd)

    def follow(self) -> bool:
        """Open the path anew if it is no longer the open file; whether that was done."""
        if self.path is None:
            return False
        try:
            here = self.path.stat()
        except FileNotFoundError:
            here = None
        except OSError:
            return False
        ours = os.fstat(self._fd)
        if here is not None and (here.st_dev, here.st_ino) == (ours.st_dev, ours.st_ino):
            return False
        sys.stderr.flush()
        try:
            new = open_own(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        except OSError:
            return False
        # The other of the two standard streams often is the same file.
        same = [fd for fd in (1, 2) if fd != self._fd and _same(fd, ours)]
        for fd in (self._fd, *same):
            os.dup2(new, fd)
        os.close(new)
        return True


def _path_of(fd: int) -> Path | None:
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        if sys.platform == "darwin":
            raw = fcntl.fcntl(fd, _F_GETPATH, bytes(_PATH_BYTES))
            return Path(os.fsdecode(raw.rstrip(b"\0")))
        path = Path(f"/proc/self/fd/{fd}").readlink()
    except OSError:
        return None
    return path if path.is_file() else None


def _same(fd: int, other: os.stat_result) -> bool:
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (other.st_dev, other.st_ino)
