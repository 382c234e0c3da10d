"""Threads for short and for large work, and what is told of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from mlxceld.models.errors import RenderingCutOffError
from mlxceld.models.metering import current_meter
from mlxceld.web import lanes as lanes_module
from mlxceld.web.lanes import LARGE_BYTES, LARGE_THREADS, SHORT_THREADS, LaneReport, Lanes

STEP_SECONDS = 30


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def lanes(clock: Clock) -> AsyncIterator[Lanes]:
    made = Lanes(clock)
    yield made
    made.close()


def look() -> None:
    """What a rendering does every few steps."""
    meter = current_meter()
    assert meter is not None
    meter.look()


async def test_short_work_does_not_queue_behind_large(lanes: Lanes) -> None:
    go_on = threading.Event()
    held = [
        asyncio.create_task(lanes.run(lambda: go_on.wait(STEP_SECONDS), size=LARGE_BYTES + 1))
        for _ in range(3 * LARGE_THREADS)
    ]
    await asyncio.sleep(0)
    ahead_entered = threading.Event()

    def ahead() -> None:
        ahead_entered.set()
        go_on.wait(STEP_SECONDS)

    lanes.run_ahead(ahead)
    assert await asyncio.to_thread(ahead_entered.wait, STEP_SECONDS)
    assert await asyncio.wait_for(lanes.run(lambda: "short", size=LARGE_BYTES), STEP_SECONDS)
    go_on.set()
    assert await asyncio.gather(*held) == [True] * (3 * LARGE_THREADS)


async def test_a_lane_in_which_work_waits_for_a_second_is_told(lanes: Lanes, clock: Clock) -> None:
    go_on, entered = threading.Event(), threading.Semaphore(0)

    def hold() -> bool:
        entered.release()
        return go_on.wait(STEP_SECONDS)

    tasks = [asyncio.create_task(lanes.run(hold)) for _ in range(SHORT_THREADS + 1)]
    for _ in range(SHORT_THREADS):
        assert await asyncio.to_thread(entered.acquire, timeout=STEP_SECONDS)
    assert lanes.report() == LaneReport()
    clock.now += 1.5
    assert lanes.report().full == ("short",)
    assert lanes.report().detail == "the lane for short work is full"
    go_on.set()
    await asyncio.gather(*tasks)
    assert lanes.report() == LaneReport()


async def test_a_rendering_that_was_cut_off_is_told_for_a_while(lanes: Lanes, clock: Clock) -> None:
    def work() -> None:
        raise RenderingCutOffError("too many steps")

    with pytest.raises(RenderingCutOffError):
        await lanes.run(work)
    clock.now += 60
    report = lanes.report()
    assert (report.cut_off, report.last_cut_off_seconds_ago) == (1, 60)
    assert report.detail == "a rendering was cut off 60 s ago: too many steps"
    clock.now += 600
    assert lanes.report() == LaneReport(cut_off=1)


async def test_a_rendering_ends_when_its_caller_leaves(lanes: Lanes) -> None:
    entered, ended = threading.Event(), threading.Event()

    def endless() -> None:
        entered.set()
        try:
            while True:
                look()
        finally:
            ended.set()

    task = asyncio.create_task(lanes.run(endless))
    assert await asyncio.to_thread(entered.wait, STEP_SECONDS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, STEP_SECONDS)


async def test_a_rendering_ends_with_its_time(lanes: Lanes) -> None:
    ended = threading.Event()

    def endless() -> None:
        meter = current_meter()
        assert meter is not None
        # So long a conversation that time is over before its steps are.
        meter.begin(messages=10**12)
        try:
            while True:
                meter.look()
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        await lanes.run(endless, seconds=0.01)
    assert await asyncio.to_thread(ended.wait, STEP_SECONDS)


async def test_time_runs_while_work_waits_for_a_thread(lanes: Lanes) -> None:
    go_on = threading.Event()
    held = [
        asyncio.create_task(lanes.run(lambda: go_on.wait(STEP_SECONDS)))
        for _ in range(SHORT_THREADS)
    ]
    await asyncio.sleep(0)
    ran: list[bool] = []
    with pytest.raises(TimeoutError):
        await lanes.run(lambda: ran.append(True), seconds=0.01)
    go_on.set()
    await asyncio.gather(*held)
    assert not ran


async def test_memory_is_given_back_once_after_several_large_requests(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes_module, "_TRIM_SECONDS", 0.0)
    trimmed = threading.Semaphore(0)
    monkeypatch.setattr(lanes_module, "trim_heap", trimmed.release)
    lanes.trim_later()
    lanes.trim_later()
    assert await asyncio.to_thread(trimmed.acquire, timeout=STEP_SECONDS)
    # Nothing else comes, however often it was asked for.
    await lanes.run(lambda: None, size=LARGE_BYTES + 1)
    assert not trimmed.acquire(blocking=False)


async def test_nothing_is_taken_after_the_end(clock: Clock) -> None:
    closed = Lanes(clock)
    closed.close()
    with pytest.raises(RuntimeError):
        closed.run_ahead(lambda: None)
