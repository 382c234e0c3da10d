"""The C library's heap: what a large piece of work has freed goes back to the system."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import lru_cache
from typing import Any

_M_ARENA_MAX = -8
"""The parameter's number in glibc's malloc.h."""


def use_one_arena() -> None:
    """Have all threads allocate from one arena; to be called before threads are started.

    glibc gives threads arenas of their own and cannot trim the top of any but the main one: 50 MB
    that a text had taken stayed with the daemon. Does nothing with another C library, or where
    ``MALLOC_ARENA_MAX`` says how many there may be.
    """
    change = _function("mallopt")
    if change is not None and "MALLOC_ARENA_MAX" not in os.environ:
        change(_M_ARENA_MAX, 1)


def trim_heap() -> None:
    """Return freed memory to the system; other threads run meanwhile.

    glibc keeps what is freed in the arena that it was taken from: without this the process stays
    as large as it ever was. Does nothing with another C library.
    """
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


@lru_cache(maxsize=2)
def _function(name: str) -> Any:
    """One of glibc's functions; None with another C library."""
    if sys.platform != "linux" or not hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        return None
    return getattr(library, name)
