"""Memory as each system counts it."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from mlxctl.bench.memory import (
    MemoryWatch,
    cpu_seconds,
    measure_of,
    process_bytes,
    read_footprint,
    read_smaps_rollup,
)

# Shaped as macOS's footprint(1) prints; the tool itself has not been run here.
FOOTPRINT = """\
======================================================================
mlxceld [4711]: 64-bit    Footprint: 957 MB (16384 bytes per page)
======================================================================

  Dirty      Clean  Reclaimable    Regions    Category
    ---        ---          ---        ---    ---
 812 MB        0 B          0 B        120    IOAccelerator (graphics)
  98 MB      12 KB          0 B         41    MALLOC_SMALL
    ---        ---          ---        ---    ---
 957 MB      44 MB        10 MB        512    TOTAL

Auxiliary data:
    phys_footprint_peak: 1653 MB
    phys_footprint: 957 MB
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FOOTPRINT, 957 * 2**20),
        (FOOTPRINT.split("Auxiliary")[0], 957 * 2**20),
        ("    phys_footprint: 1.5 GB\n", 3 * 2**29),
        ("    phys_footprint: 16384 B\n", 16384),
        ("    phys_footprint: 208 KB\n", 208 * 1024),
    ],
)
def test_the_physical_footprint_is_read(text, expected):
    assert read_footprint(text) == expected


@pytest.mark.parametrize("text", ["", "footprint: no such process", "phys_footprint_peak: 1 MB\n"])
def test_what_has_no_footprint_is_refused(text):
    with pytest.raises(ValueError, match="no footprint"):
        read_footprint(text)


def test_the_proportional_set_size_is_read():
    text = "5600-7ffe ---p 00000000 00:00 0 [rollup]\nRss:  20 kB\nPss:  12 kB\nPss_Anon: 3 kB\n"
    assert read_smaps_rollup(text) == 12 * 1024
    with pytest.raises(ValueError, match="no Pss"):
        read_smaps_rollup("Rss: 20 kB\n")


def test_what_is_measured_is_named():
    assert [measure_of(name) for name in ("linux", "darwin", "freebsd")] == [
        "PSS",
        "physical footprint",
        "resident size",
    ]


def test_children_count_too():
    alone = process_bytes(os.getpid())
    waiting = "print('x', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", waiting], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child_alone = process_bytes(child.pid)
        together = process_bytes(os.getpid())
        assert child.stdin is not None
        child.communicate(b"\n")
    assert alone is not None
    assert child_alone is not None
    assert together is not None
    assert together > child_alone > 0
    assert cpu_seconds(os.getpid()) is not None


def test_a_process_that_is_gone_has_none():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert not psutil.pid_exists(child.pid)
    assert process_bytes(child.pid) is None
    assert cpu_seconds(child.pid) is None


def test_a_watch_has_a_first_and_a_last_sample():
    with MemoryWatch(os.getpid()) as watch:
        pass
    assert len(watch.samples) >= 2
    with MemoryWatch(None) as watch:
        pass
    assert watch.samples == []
