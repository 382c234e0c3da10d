"""What is freed goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import threading
from pathlib import Path

from mlxceld.models.heap import trim_heap, use_one_arena

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def work():
    # A large piece that comes and goes raises the size from which glibc asks the system,
    # and how much it keeps: the others are taken from an arena.
    bytes(30_000_000)
    pieces = [bytes(100_000) for _ in range(400)]
    pieces.clear()

use_one_arena()
before = resident()
for _ in range(4):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
trim_heap()
print((resident() - before) // 2**20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_what_a_thread_has_freed_goes_back():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env={}
    )
    assert int(done.stdout) < 8
