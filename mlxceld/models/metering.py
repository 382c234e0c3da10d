"""What one rendering may cost: steps, time, and the size of what it writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mlxceld.models.errors import RenderingCutOffError

STEPS = 2_000_000
"""Passes through loops and macros, a second's work. A template that goes through all messages at
each message takes 2,000 messages that far; see also :data:`STEPS_PER_MESSAGE`."""

STEPS_PER_MESSAGE = 1_000

CPU_SECONDS = 30.0
"""A rendering whose steps are few but costly ends by this."""

SIZE = 64 * 2**20
"""Characters that a value or the whole text may have."""

_BETWEEN_LOOKS = 500
"""Steps after which the clock is looked at, some 0.3 ms."""

_PAUSE_SECONDS = 5e-5
"""Long enough for a thread that waits for the interpreter to get it; ``sleep(0)`` is not."""

_PAUSE_AFTER_SECONDS = 0.002
"""How long a rendering keeps the interpreter at most, as far as its steps are short."""


class Meter:
    """Counts what the renderings of one request cost; used by one thread at a time.

    ``deadline`` is a time of ``time.monotonic``; ``abandoned`` tells whether the request's client
    has left. Both are looked at every few steps.
    """

    def __init__(
        self,
        *,
        steps: int | None = None,
        deadline: float | None = None,
        abandoned: Callable[[], bool] = lambda: False,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        steps = STEPS if steps is None else steps
        self._steps = steps
        self._deadline = deadline
        self._abandoned = abandoned
        self._pause = pause
        self._limit = steps
        self._left = steps
        self._batch = self._batch_size()
        self._paused_at = time.monotonic()
        self._began = time.thread_time()

    def begin(self, messages: int) -> None:
        """A rendering of so many messages begins."""
        self._limit = self._left = self._steps + STEPS_PER_MESSAGE * messages
        self._batch = self._batch_size()
        self._began = time.thread_time()

    def step(self) -> None:
        """Count one pass of a loop or macro; raises RenderingCutOffError past a limit."""
        self._batch -= 1
        if not self._batch:
            self.look()

    def look(self) -> None:
        """Check all limits and let other threads run; raises RenderingCutOffError."""
        self._left -= min(_BETWEEN_LOOKS, self._left)
        if not self._left:
            raise RenderingCutOffError(f"the chat template did not end within {self._limit} steps")
        self._batch = self._batch_size()
        now = time.monotonic()
        if self._deadline is not None and now >= self._deadline:
            raise RenderingCutOffError("the chat template did not end in time", timed_out=True)
        if self._abandoned():
            raise RenderingCutOffError("the client left while the chat template was rendered")
        if time.thread_time() - self._began > CPU_SECONDS:
            raise RenderingCutOffError(
                f"the chat template did not end within {CPU_SECONDS:g} s of computing"
            )
        if now - self._paused_at >= _PAUSE_AFTER_SECONDS:
            self._pause(_PAUSE_SECONDS)
            self._paused_at = time.monotonic()

    def _batch_size(self) -> int:
        return max(1, min(_BETWEEN_LOOKS, self._left))


class _Current(threading.local):
    meter: Meter | None = None


_current = _Current()


@contextmanager
def metered(meter: Meter) -> Iterator[None]:
    """Count what this thread renders on ``meter``."""
    before, _current.meter = _current.meter, meter
    try:
        yield
    finally:
        _current.meter = before


def current_meter() -> Meter | None:
    """This thread's meter."""
    return _current.meter


def step(_value: object = None) -> bool:
    """Count a step on this thread's meter."""
    meter = _current.meter
    if meter is not None:
        meter.step()
    return True


def check_size(size: int) -> None:
    """Raise RenderingCutOffError if a value of so many characters or items is too large."""
    if size > SIZE:
        raise RenderingCutOffError(
            f"the chat template makes a value of {size} characters or items,"
            f" expected at most {SIZE}"
        )
