"""Signals in the first moments of a start, before there is an event loop."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys
from mlxceld.process.early import take_early_signals
take_early_signals()
os.kill(os.getpid(), signal.SIGHUP)
print("on", flush=True)
os.kill(os.getpid(), int(sys.argv[1]))
print("never", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_the_start_well_and_a_reload_does_not_end_it(number: signal.Signals) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(int(number))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "on\n")
    assert f"{number.name}: stopped while starting" in done.stderr
