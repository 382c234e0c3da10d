"""What waits for a reader of the live trace is bounded, in order, and costs nothing when off."""

from __future__ import annotations

import logging

from mlxceld.prompt_cache.reports import TraceEvent
from mlxceld.prompt_cache.trace import Trace
from mlxceld.prompt_cache.trace_feed import FEED_EVENTS, Lost, Switched, TraceFeed


def test_a_full_feed_loses_what_comes_and_says_how_many_where():
    wakes: list[int] = []
    feed = TraceFeed(lambda: wakes.append(1), lambda _: None, limit=2)
    events = [TraceEvent(at, "store") for at in range(5)]
    kept = [feed.push(event) for event in events]
    assert kept == [True, True, False, False, False]
    assert feed.take() == [*events[:2], Lost(3)]
    assert feed.take() == []
    assert feed.push(events[4])
    assert feed.take() == [events[4]]
    # One wake-up a batch, not one an event.
    assert len(wakes) == 2


def test_followers_see_what_happens_while_the_trace_is_on():
    trace = Trace(lambda: 0)
    feed = trace.follow(lambda: None)
    for enabled in (False, True, False, True):
        trace.switch(enabled)
        trace.emit("store", context_len=10 + enabled)
    trace.emit("evict")
    seen = [i.enabled if isinstance(i, Switched) else i.event for i in feed.take()]
    assert seen == [False, True, "store", False, True, "store", "evict"]
    # The ring has them all.
    assert len(trace.tail(10)) == 5
    feed.close()
    trace.emit("store")
    assert feed.take() == []


def test_a_slow_reader_costs_the_others_nothing():
    trace = Trace(lambda: 0, enabled=True)
    slow, quick = trace.follow(lambda: None), trace.follow(lambda: None)
    got = 0
    for _ in range(FEED_EVENTS + 7):
        trace.emit("store")
        got += len(quick.take())
    assert got == FEED_EVENTS + 7
    assert trace.dropped == 7
    assert slow.take()[-1] == Lost(7)


def test_an_event_costs_one_attribute_test_while_the_trace_is_off():
    """Counted in calls: beyond its place in the ring an event makes none."""
    reads = 0

    class Counted(Trace):
        def __getattribute__(self, name: str):
            nonlocal reads
            reads += name in ("enabled", "_log", "_feeds", "_tell", "dropped", "_lock")
            return super().__getattribute__(name)

    lines = 0
    log = logging.Logger("counted")

    def count(*_: object) -> None:
        nonlocal lines
        lines += 1

    log.info = count  # type: ignore[method-assign,assignment]
    trace = Counted(lambda: 0, logger=log)
    trace.follow(count)
    reads = 0
    for _ in range(50):
        trace.emit("store")
    assert (reads, lines) == (50, 0)
    trace.switch(True)
    lines = 0
    trace.emit("store")
    assert lines == 1
