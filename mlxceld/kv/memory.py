"""Giving freed memory back to the system, and at the end all that MLX holds."""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from typing import Any

import mlx.core as mx


def release_freed() -> None:
    """Return what MLX has freed to the system.

    MLX keeps freed buffers for itself, and glibc keeps what MLX hands back to it: without the
    second half the process stays as large as it ever was.
    """
    mx.clear_cache()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@lru_cache(maxsize=1)
def _malloc_trim() -> Any:
    """glibc's function; None with another C library."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def release_mlx() -> None:
    """Give memory back and end this thread's streams; without the latter the exit aborts."""
    mx.synchronize()
    release_freed()
    mx.clear_streams()
