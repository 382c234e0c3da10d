"""What the engine thread takes in, and how long it waits for more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mlxceld.engine.inbox import Inbox


class Waits:
    """Stands in for the lock's wait: what comes meanwhile, one thing a call, is the test's."""

    def __init__(self, inbox: Inbox, *comes: Callable[[], None] | None) -> None:
        self.seconds: list[float] = []
        self._comes = list(comes)
        inbox.lock.wait = self  # type: ignore[method-assign,assignment]

    def __call__(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        come = self._comes.pop(0) if self._comes else None
        if come is not None:
            come()
        return come is not None


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


def _submits(inbox: Inbox, name: str) -> Callable[[], None]:
    entry: Any = name
    return lambda: inbox.asked.submitted.append(entry)


def _take(inbox: Inbox, *, idle: bool = True, waits: bool = True, drain: bool = True) -> Any:
    return inbox.take(idle=idle, waits=waits, drain_is_news=drain, seconds=30.0)


def test_an_idle_engine_waits_a_moment_for_requests_that_come_together(inbox: Inbox) -> None:
    waits = Waits(inbox, _submits(inbox, "a"), _submits(inbox, "b"), _submits(inbox, "c"))
    assert list(_take(inbox).submitted) == ["a", "b", "c"]
    # For the first as long as it takes, then a moment after each, until one passes without any.
    assert waits.seconds == [30.0, 0.002, 0.002, 0.002]


def test_it_begins_after_five_moments_whoever_still_comes(inbox: Inbox) -> None:
    waits = Waits(inbox, *[_submits(inbox, str(i)) for i in range(20)])
    assert len(_take(inbox).submitted) == 6
    assert waits.seconds == [30.0, *[0.002] * 5]


def test_a_busy_engine_waits_for_nobody(inbox: Inbox) -> None:
    waits = Waits(inbox)
    _submits(inbox, "a")()
    assert list(_take(inbox, idle=False, waits=False).submitted) == ["a"]
    assert not _take(inbox, idle=False, waits=False)
    assert waits.seconds == []


@pytest.mark.parametrize("kind", ["cancelled", "commands", "offered"])
def test_only_requests_are_waited_for(inbox: Inbox, kind: str) -> None:
    waits = Waits(inbox, lambda: getattr(inbox.asked, kind).append(None))
    assert list(getattr(_take(inbox), kind)) == [None]
    assert waits.seconds == [30.0]


def test_an_engine_that_computes_ahead_gathers_but_does_not_wait(inbox: Inbox) -> None:
    waits = Waits(inbox)
    assert not _take(inbox, waits=False)
    assert waits.seconds == []
    _submits(inbox, "a")()
    assert _take(inbox, waits=False)
    assert waits.seconds == [0.002]


def test_the_end_is_not_put_off(inbox: Inbox) -> None:
    def stop() -> None:
        inbox.stopping = True

    waits = Waits(inbox, _submits(inbox, "a"), stop)
    taken = _take(inbox)
    assert (list(taken.submitted), taken.stopping) == (["a"], True)
    assert waits.seconds == [30.0, 0.002]
    # What came in before the end was told is taken with it.
    _submits(inbox, "b")()
    assert list(_take(inbox).submitted) == ["b"]
    assert waits.seconds == [30.0, 0.002]


def test_a_drain_is_news_once(inbox: Inbox) -> None:
    inbox.draining = True
    waits = Waits(inbox)
    assert _take(inbox).draining
    assert waits.seconds == []
    assert _take(inbox, drain=False).draining
    assert waits.seconds == [30.0]
