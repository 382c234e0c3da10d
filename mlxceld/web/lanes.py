"""Threads for what requests need computed, so that a short one never queues behind a long one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from mlxceld.models.errors import RenderingCutOffError
from mlxceld.models.heap import trim_heap
from mlxceld.models.metering import Meter, metered

LARGE_BYTES = 256 * 1024
"""Work on so much text takes longer than a tenth of a second: it has a lane of its own."""

SHORT_THREADS = 8
LARGE_THREADS = 2

_FULL_SECONDS = 1.0
"""How long work may wait for a thread before its lane counts as full."""

_LATELY_SECONDS = 300.0
"""For how long a rendering that was cut off is told of."""

_TRIM_SECONDS = 1.0
"""How long after a large request its memory is given back: by then nothing holds it any more."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LaneReport:
    """How the lanes do. ``full`` are lanes in which work has waited for a second or longer."""

    full: tuple[str, ...] = ()
    cut_off: int = 0
    last_cut_off: str | None = None
    last_cut_off_seconds_ago: float | None = None

    @property
    def detail(self) -> str | None:
        """What is not as it should be, in words; None if nothing is."""
        told = [f"the lane for {name} work is full" for name in self.full]
        if self.last_cut_off is not None and self.last_cut_off_seconds_ago is not None:
            told.append(
                f"a rendering was cut off {self.last_cut_off_seconds_ago:.0f} s ago:"
                f" {self.last_cut_off}"
            )
        return "; ".join(told) or None


class _Lane:
    """Some threads, and since when the oldest work has waited for one."""

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._waiting: dict[int, float] = {}
        self._next = 0

    def enter(self, now: float) -> int:
        with self._lock:
            self._next += 1
            self._waiting[self._next] = now
            return self._next

    def leave(self, ticket: int) -> None:
        with self._lock:
            self._waiting.pop(ticket, None)

    def waits_since(self) -> float | None:
        with self._lock:
            return min(self._waiting.values(), default=None)


class Lanes:
    """The threads that parse, render and tokenize, beside the event loop and the engine.

    Everything runs on a meter, which ends a rendering when its request's time is over or its
    client has left.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._short = _Lane("short", SHORT_THREADS)
        self._large = _Lane("large", LARGE_THREADS)
        self._ahead = _Lane("ahead", 1)
        self._cut_off = 0
        self._last: tuple[float, str] | None = None
        self._trim: asyncio.TimerHandle | None = None

    async def run(self, work: Callable[[], T], *, size: int = 0, seconds: float | None = None) -> T:
        """Do ``work`` on ``size`` bytes of text beside the event loop.

        Raises TimeoutError once ``seconds`` are over. Where that happens or the caller is
        cancelled, a rendering ends at its next steps; other work is finished for nobody.
        """
        lane = self._large if size > LARGE_BYTES else self._short
        given_up = threading.Event()
        deadline = None if seconds is None else time.monotonic() + seconds
        meter = Meter(deadline=deadline, abandoned=given_up.is_set)
        ticket = lane.enter(self._clock())

        def metered_work() -> T:
            lane.leave(ticket)
            with metered(meter):
                return self._noted(work)

        try:
            async with asyncio.timeout(seconds):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(lane.executor, metered_work)
        except RenderingCutOffError as error:
            if error.timed_out:
                raise TimeoutError from None
            raise
        finally:
            given_up.set()
            lane.leave(ticket)

    def run_ahead(self, work: Callable[[], object]) -> None:
        """Do what nobody waits for, one at a time. Raises RuntimeError after :meth:`close`."""

        def metered_work() -> None:
            with metered(Meter()):
                self._noted(work)

        self._ahead.executor.submit(metered_work)

    def trim_later(self) -> None:
        """A large request is over: give its memory back in a moment."""
        if self._trim is None:
            self._trim = asyncio.get_running_loop().call_later(_TRIM_SECONDS, self._trim_now)

    def report(self) -> LaneReport:
        """How the lanes do now."""
        now = self._clock()
        since = {lane.name: lane.waits_since() for lane in (self._short, self._large)}
        full = tuple(n for n, at in since.items() if at is not None and now - at >= _FULL_SECONDS)
        if self._last is None or now - self._last[0] > _LATELY_SECONDS:
            return LaneReport(full, self._cut_off)
        return LaneReport(full, self._cut_off, self._last[1], now - self._last[0])

    def close(self) -> None:
        """Take no more work; what runs is finished by itself."""
        if self._trim is not None:
            self._trim.cancel()
        for lane in (self._short, self._large, self._ahead):
            lane.executor.shutdown(wait=False, cancel_futures=True)

    def _noted(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except RenderingCutOffError as error:
            self._cut_off += 1
            self._last = (self._clock(), str(error))
            raise

    def _trim_now(self) -> None:
        self._trim = None
        self._large.executor.submit(trim_heap)
