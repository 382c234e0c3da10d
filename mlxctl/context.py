"""What every command works with, made of the global options when it is first needed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from mlxctl.client import AdminClient, Target
from mlxctl.errors import CtlError, ExitCode
from mlxctl.output import Output

DEFAULT_TIMEOUT = 60.0
"""Seconds that one request may take; the daemon gives up on a change after 30."""


@dataclass
class Ctl:
    """One run of mlxctl. ``options`` holds the global options by name, as given.

    ``sleep`` and ``clock`` are the time that waiting commands pass and read; ``wall`` is Unix time.
    """

    options: dict[str, Any] = field(default_factory=dict)
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    @cached_property
    def output(self) -> Output:
        """Where the command prints."""
        return Output(
            self.options.get("output") or "table", colour=not self.options.get("no_color")
        )

    @cached_property
    def client(self) -> AdminClient:
        """The daemon."""
        return AdminClient(
            self.target,
            self.options.get("timeout") or DEFAULT_TIMEOUT,
            warn=self.output.message,
        )

    @property
    def target(self) -> Target:
        """Which daemon is meant: the one of ``--socket`` or ``--url``, else the user's own."""
        url, path = self.options.get("url"), self.options.get("socket")
        return Target(
            socket=path or (default_socket() if url is None else Path()),
            url=url,
            token_file=self.options.get("token_file"),
            named=url is not None or path is not None,
        )

    def confirm(self, question: str, *, yes: bool) -> None:
        """Go on only with a yes; without a terminal to ask on, only with ``--yes``."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise CtlError(
                "confirmation_needed",
                "this asks before it acts, and there is no terminal to ask on",
                ExitCode.USAGE,
                hint="give --yes to go ahead, or --dry-run to see what would happen",
            )
        if not click.confirm(question, err=True):
            raise CtlError("declined", "nothing was changed", ExitCode.REFUSED)

    def ticks(self, interval: float) -> Iterator[int]:
        """Count up for ever, with a pause of ``interval`` seconds after each number."""
        number = 0
        while True:
            yield number
            number += 1
            self.sleep(interval)


def default_socket() -> Path:
    """The admin socket of this user's daemon, as the settings place it."""
    from mlxceld.config import paths

    return paths.find_admin_socket()


pass_ctl = click.make_pass_decorator(Ctl, ensure=True)
