"""The lock that lets one daemon at a time work in a state folder, and tells who holds it.

The lock is the kernel's, on an open file: it goes with the process however that ends. What is
written in the file only describes the holder, and counts for nothing without the lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mlxceld.config.folders import open_own, private_folder
from mlxceld.config.paths import LOCK_NAME

NAME = LOCK_NAME

_ATTEMPTS, _PAUSE_SECONDS = 10, 0.02


@dataclass(frozen=True, slots=True)
class Holder:
    """The daemon that holds a state folder.

    ``pid`` is None for the moment in which it holds the lock and has not yet said who it is;
    ``address`` is where it listens, empty until it does; ``started_at`` is seconds since the
    epoch.
    """

    pid: int | None
    address: str = ""
    started_at: float = 0.0

    def __str__(self) -> str:
        who = "another process" if self.pid is None else f"process {self.pid}"
        return f"{who} ({self.address})" if self.address else who


class AlreadyRunningError(Exception):
    """Another daemon works in the state folder."""

    def __init__(self, state_dir: Path, holder: Holder) -> None:
        super().__init__(
            f"{holder} already runs with the state folder {state_dir}: stop it with"
            f" `mlxceld stop`, or give this one another --state-dir"
        )
        self.holder = holder


class StateLock:
    """Holds the state folder from :meth:`acquire` until :meth:`release`, or the process's end."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / NAME
        self._fd: int | None = None
        self._holder = Holder(None)

    def acquire(self, *, started_at: float) -> None:
        """Take the lock, making the folder (0700) if it is missing.

        Raises AlreadyRunningError if another process has it, FolderError if another user could
        get at what is in the folder, OSError if it cannot be used.
        """
        private_folder(self.path.parent)
        fd = open_own(self.path, os.O_RDWR | os.O_CREAT)
        try:
            locked = _lock(fd)
        except OSError:
            os.close(fd)
            raise
        if not locked:
            raise AlreadyRunningError(self.path.parent, _described(fd))
        self._fd = fd
        self._write(Holder(os.getpid(), started_at=started_at))

    def publish_address(self, address: str) -> None:
        """Say where the daemon listens; the lock must be held."""
        self._write(replace(self._holder, address=address))

    def release(self) -> None:
        """Give the folder up. The file stays: to remove it would race with the next daemon."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None

    def _write(self, holder: Holder) -> None:
        if self._fd is None:
            raise RuntimeError(f"{self.path} is not locked")
        self._holder = holder
        text = json.dumps(asdict(holder)).encode() + b"\n"
        # The tail goes last, so that a reader finds the old text, or the new one, or one that
        # does not parse, and never a mixture that does.
        os.pwrite(self._fd, text, 0)
        os.ftruncate(self._fd, len(text))


def read_holder(state_dir: Path) -> Holder | None:
    """The daemon that holds the folder now; None if none does, whatever a file there says.

    Raises OSError if the file is no regular one or cannot be opened.
    """
    try:
        fd = open_own(state_dir / NAME, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        # Shared, so that two who ask at once do not take each other for a daemon.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _described(fd)
    os.close(fd)
    return None


def _lock(fd: int) -> bool:
    """Lock for this process alone; False if another daemon has it."""
    for attempt in range(_ATTEMPTS):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # One who only looks holds it too, for an instant.
            if attempt + 1 < _ATTEMPTS:
                time.sleep(_PAUSE_SECONDS)
        else:
            return True
    return False


def _described(fd: int) -> Holder:
    """What the locked file says of its holder; closes ``fd``."""
    with os.fdopen(fd, "rb") as file:
        text = file.read(4096)
    try:
        said = json.loads(text)
        return Holder(int(said["pid"]), str(said["address"]), float(said["started_at"]))
    except (ValueError, KeyError, TypeError):
        return Holder(None)
