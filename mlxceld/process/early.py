"""Signals that come before the event loop takes them."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def take_early_signals() -> None:
    """Until the event loop takes them over: a stop ends the start well, a reload waits for it.

    Otherwise either would end the process with the signal's own code. To be called on the main
    thread.
    """
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    # The settings have yet to be read, so that there is nothing to read again.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _stop(number: int, frame: FrameType | None) -> None:
    print(f"mlxceld: {signal.Signals(number).name}: stopped while starting", file=sys.stderr)
    raise SystemExit(0)
