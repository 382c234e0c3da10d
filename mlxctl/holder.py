"""Which process works in a state folder, as the lock there tells."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path


def holder_of(lock: Path) -> int | None:
    """The process that holds a state folder's lock, 0 if it does not say; None if nobody does."""
    try:
        with lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                try:
                    return int(json.loads(file.read(4096))["pid"])
                except (ValueError, KeyError, TypeError):
                    return 0
    except OSError:
        return None
    return None
