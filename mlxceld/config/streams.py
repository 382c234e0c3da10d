"""The standard streams of a process that was started without some of them."""

from __future__ import annotations

import os
import sys


def open_missing_streams() -> None:
    """Open /dev/null in the place of each closed standard stream.

    Otherwise the next file or socket would get its number, and what is printed would go there.
    To be called first of all.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
