"""Giving freed memory back to the system, and at the end all that MLX holds."""

from __future__ import annotations

import mlx.core as mx

from mlxceld.models.heap import trim_heap


def release_freed() -> None:
    """Return what MLX has freed to the system.

    MLX keeps freed buffers for itself, and glibc keeps what MLX hands back to it: without the
    second half the process stays as large as it ever was.
    """
    mx.clear_cache()
    trim_heap()


def release_mlx() -> None:
    """Give memory back and end this thread's streams; without the latter the exit aborts."""
    mx.synchronize()
    release_freed()
    mx.clear_streams()
