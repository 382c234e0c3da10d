"""Freed memory goes back to the system."""

from __future__ import annotations

import sys

import mlx.core as mx
import psutil
import pytest

from mlxceld.kv.memory import release_freed

MIB = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is asked")
def test_what_was_freed_beside_something_that_lives_goes_back() -> None:
    process = psutil.Process()
    # Too small to be mapped each by itself: what is between those that live stays in the heap.
    held = [mx.ones(16 << 10, dtype=mx.float32) for _ in range(64 * 16)]
    mx.eval(held)
    alive = held[::8]
    full = process.memory_info().rss
    held.clear()
    release_freed()
    assert full - process.memory_info().rss > 32 * MIB
    assert all(array.sum().item() == 16 << 10 for array in alive)
