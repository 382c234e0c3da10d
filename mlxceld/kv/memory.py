"""Giving freed memory back to the system, rather than to the next allocation."""

from __future__ import annotations

import ctypes
import sys

import mlx.core as mx


def release_freed() -> None:
    """Return what MLX has freed to the system.

    MLX keeps freed buffers for itself, and glibc keeps what MLX hands back to it: without the
    second half the process stays as large as it ever was.
    """
    mx.clear_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
