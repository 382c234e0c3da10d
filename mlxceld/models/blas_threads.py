"""How many threads OpenBLAS computes with, by what else the machine has to do.

OpenBLAS's threads wait for each other by yielding the processor. Beside other busy processes each
such wait costs a time slice, and a matrix product has one: on two cores beside one busy process,
two threads were seen to be three times slower than one or more. While the process's threads wait
for the processor for a large part of the time, fewer of them compute.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from mlxceld.models import blas

SAMPLE_SECONDS = 0.25

_CONTENDED_SHARE = 0.4
"""Seconds that threads waited for a processor, of all threads together, a second of wall time.

Two threads on two cores waited 0.05 when nothing else ran, and 0.7 beside one busy process.
"""

_CONTENDED_SAMPLES = 2
"""So many in a row change something: one alone may be a burst."""

_FIRST_PAUSE_SECONDS = 5.0
_LAST_PAUSE_SECONDS = 60.0

_TASKS = Path("/proc/self/task")

log = logging.getLogger(__name__)


def waited_seconds() -> float:
    """How long this process's threads have waited for a processor, all together.

    From Linux's ``/proc/self/task/*/schedstat``: time run, time waited on a run queue, both in
    nanoseconds, and time slices. 0 where the kernel does not tell.
    """
    total = 0
    for task in _TASKS.glob("*/schedstat"):
        try:
            total += int(task.read_text().split()[1])
        except (OSError, IndexError, ValueError):
            # A thread that has ended meanwhile.
            continue
    return total / 1e9


class ThreadGovernor:
    """Halves the number of threads while they wait for processors, and tries all of them again.

    ``most`` is the number to begin with and to come back to. The pause before a try is
    doubled each time that it fails at once.
    """

    def __init__(
        self,
        most: int,
        set_threads: Callable[[int], None],
        waited: Callable[[], float] = waited_seconds,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._set_threads = set_threads
        self._waited = waited
        self._clock = clock
        self._threads = most
        self._contended = 0
        self._pause = _FIRST_PAUSE_SECONDS
        self._full_since = clock()
        self._try_at = 0.0
        self._last: tuple[float, float] | None = None

    @property
    def threads(self) -> int:
        """With how many threads matrix products are computed now."""
        return self._threads

    def skip(self) -> None:
        """What comes until the next sample is no measure: nothing is computed."""
        self._last = None
        self._contended = 0

    def sample(self) -> None:
        """Look at the time since the last sample, and change the number of threads if need be."""
        now = self._clock()
        if self._threads < self._most and now >= self._try_at:
            self._change(self._most)
            self._full_since = now
            self.skip()
        if self._threads == 1:
            return
        waited = self._waited()
        last, self._last = self._last, (now, waited)
        if last is None or now <= last[0]:
            return
        contended = (waited - last[1]) / (now - last[0]) >= _CONTENDED_SHARE
        self._contended = self._contended + 1 if contended else 0
        if self._contended >= _CONTENDED_SAMPLES:
            self._step_down(now)

    def _step_down(self, now: float) -> None:
        if self._threads == self._most:
            held = now - self._full_since
            # What held for longer than its pause was quiet; the load is a new one.
            self._pause = (
                _FIRST_PAUSE_SECONDS
                if held > self._pause
                else min(2 * self._pause, _LAST_PAUSE_SECONDS)
            )
        self._try_at = now + self._pause
        self._change(max(1, self._threads // 2))
        self.skip()

    def _change(self, threads: int) -> None:
        self._threads = threads
        self._set_threads(threads)
        log.debug("matrix products: %d of %d threads", threads, self._most)


class GovernorThread:
    """Samples while the engine computes; sleeps without waking while it is idle."""

    def __init__(self, governor: ThreadGovernor, seconds: float = SAMPLE_SECONDS) -> None:
        self._governor = governor
        self._seconds = seconds
        self._computing = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="blas-threads", daemon=True)

    def start(self) -> None:
        """Begin; the engine is taken for computing."""
        self._computing.set()
        self._thread.start()

    def computing(self, computing: bool) -> None:
        """The engine begins or ends to compute."""
        if computing:
            self._computing.set()
        else:
            self._computing.clear()

    def close(self) -> None:
        """End the thread and wait for it."""
        self._ended.set()
        self._computing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            if not self._computing.is_set():
                self._computing.wait()
                self._governor.skip()
            self._governor.sample()
            self._ended.wait(self._seconds)


def start_governor() -> GovernorThread | None:
    """Govern the threads of the OpenBLAS that was loaded; None if there is nothing to govern."""
    control = blas.thread_control()
    if control is None or not waited_seconds():
        return None
    thread = GovernorThread(ThreadGovernor(control.threads, control.set_threads))
    thread.start()
    return thread
