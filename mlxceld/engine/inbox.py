"""What callers ask of the engine thread, until it looks."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxceld.engine.commands import Command
    from mlxceld.engine.request import NextTurn
    from mlxceld.engine.sequence import Sequence

_GATHER_SECONDS = 0.002
_GATHER_ROUNDS = 5
"""An idle engine that gets a request waits for the next one so long, and so often at most."""


@dataclass(slots=True)
class Asked:
    """New sequences, ids to cancel, commands, and turns to compute ahead.

    ``stopping`` and ``draining`` are set when it is taken: what is asked after that comes later.
    """

    submitted: deque[Sequence] = field(default_factory=deque)
    cancelled: deque[str] = field(default_factory=deque)
    commands: deque[tuple[Command, Future[Any]]] = field(default_factory=deque)
    offered: deque[NextTurn] = field(default_factory=deque)
    stopping: bool = False
    draining: bool = False

    def __bool__(self) -> bool:
        return bool(self.submitted or self.cancelled or self.commands or self.offered)


class Inbox:
    """Filled by any thread, emptied by the engine's.

    ``lock`` guards everything here; who puts something in holds it and notifies it. The engine
    never holds it while it works.
    """

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.asked = Asked()
        self.stopping = False
        self.draining = False

    def take(self, *, idle: bool, waits: bool, drain_is_news: bool, seconds: float) -> Asked:
        """All that was asked since the last call.

        One that ``waits`` is held until there is something, the end or, where that is news, a
        drain among it, or until ``seconds`` have gone by. An ``idle`` engine then waits a moment
        for requests that come together, to begin with all of them at once.
        """
        with self.lock:
            while waits and not (self.asked or self.stopping or (drain_is_news and self.draining)):
                if not self.lock.wait(seconds):
                    break
            if idle:
                self._gather()
            return self.take_now()

    def take_now(self) -> Asked:
        """All that was asked, without waiting; the caller holds the lock."""
        asked, self.asked = self.asked, Asked()
        asked.stopping, asked.draining = self.stopping, self.draining
        return asked

    def _gather(self) -> None:
        for _ in range(_GATHER_ROUNDS):
            before = len(self.asked.submitted)
            if not before or self.stopping:
                return
            self.lock.wait(_GATHER_SECONDS)
            if len(self.asked.submitted) == before:
                return
