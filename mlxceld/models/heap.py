"""The C library's heap: what a large piece of work has freed goes back to the system."""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from typing import Any


def trim_heap() -> None:
    """Return freed memory to the system; other threads run meanwhile.

    glibc keeps what is freed in the arena of the thread that allocated it: without this the
    process stays as large as it ever was. Does nothing with another C library.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@lru_cache(maxsize=1)
def _malloc_trim() -> Any:
    """glibc's function; None with another C library."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
