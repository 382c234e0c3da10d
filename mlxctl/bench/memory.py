"""A server's memory over time: what the system counts to its process and its children.

Linux: the proportional set size (PSS), in which a page that processes share counts in parts. macOS:
the physical footprint, since the resident size does not see Metal's buffers.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

_INTERVAL_SECONDS = 0.2

_MOST_OF_A_CORE = 0.05
"""Share of the time that sampling may take; PSS walks the process's page tables."""

_FOOTPRINT = re.compile(r"^\s*(?:phys_footprint|.*\bFootprint):\s*([\d.]+)\s*([KMGT]?B)\b", re.M)


def measure_of(platform: str = sys.platform) -> str:
    """What is measured, in a word or two."""
    if platform == "darwin":
        return "physical footprint"
    return "PSS" if platform == "linux" else "resident size"


def process_bytes(pid: int, platform: str = sys.platform) -> int | None:
    """Bytes of a process and its children; None if it cannot be told."""
    import psutil

    try:
        processes = [psutil.Process(pid)]
        processes += processes[0].children(recursive=True)
    except psutil.Error:
        return None
    found = [_one(process.pid, platform) for process in processes]
    return None if found[0] is None else sum(count or 0 for count in found)


def cpu_seconds(pid: int) -> float | None:
    """Processor time of a process and its children so far; None if it cannot be told."""
    import psutil

    try:
        process = psutil.Process(pid)
        used = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    except psutil.Error:
        return None
    return float(sum(times.user + times.system for times in used))


def read_smaps_rollup(text: str) -> int:
    """The PSS in /proc/PID/smaps_rollup, in bytes; raises ValueError if there is none."""
    found = re.search(r"^Pss:\s+(\d+) kB$", text, re.M)
    if found is None:
        raise ValueError("no Pss in smaps_rollup")
    return int(found.group(1)) * 1024


def read_footprint(text: str) -> int:
    """The physical footprint in the output of macOS's ``footprint PID``, in bytes.

    Its sizes are in powers of 1024. Raises ValueError if there is none.
    """
    found = list(_FOOTPRINT.finditer(text))
    if not found:
        raise ValueError("no footprint in the output of footprint")
    number, unit = found[-1].groups()
    scale: int = 1024 ** "BKMGT".index(unit[0])
    return round(float(number) * scale)


class MemoryWatch:
    """Samples a server's memory from a thread; ``samples`` are seconds from its start and bytes."""

    def __init__(self, pid: int | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self.samples: list[tuple[float, int]] = []
        self._pid = pid
        self._clock = clock
        self._began = clock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self.sample()
        self._began = self._clock()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.sample()

    @property
    def peak(self) -> int | None:
        """The most that was seen."""
        return max((count for _, count in self.samples), default=None)

    def sample(self) -> int | None:
        """Look once."""
        count = process_bytes(self._pid) if self._pid is not None else None
        if count is not None:
            self.samples.append((self._clock() - self._began, count))
        return count

    def _watch(self) -> None:
        pause = _INTERVAL_SECONDS
        while not self._over.wait(pause):
            began = self._clock()
            self.sample()
            pause = max(_INTERVAL_SECONDS, (self._clock() - began) / _MOST_OF_A_CORE)


def _one(pid: int, platform: str) -> int | None:
    if platform == "linux":
        try:
            return read_smaps_rollup(Path(f"/proc/{pid}/smaps_rollup").read_text())
        except (OSError, ValueError):
            pass
    if platform == "darwin":
        done = subprocess.run(  # noqa: S603
            ["/usr/bin/footprint", str(pid)], capture_output=True, text=True, check=False
        )
        try:
            return read_footprint(done.stdout)
        except ValueError:
            return None
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None
