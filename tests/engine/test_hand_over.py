"""How tokens come to their callers: what it costs, counted, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from engine_harness import CoreHarness
from mlxceld.engine import core as engine_core
from mlxceld.engine.events import Delta
from mlxceld.engine.stream import EventStream, Wakeup, deliver

Make = Callable[..., CoreHarness]


async def test_a_step_of_eight_rows_wakes_the_loop_once(
    core: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    plain, wake_ups = loop.call_soon_threadsafe, 0

    def count(callback: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal wake_ups
        wake_ups += 1
        return plain(callback, *arguments, **named)

    monkeypatch.setattr(loop, "call_soon_threadsafe", count)
    harness = core(max_batch_size=8)
    ids = [harness.submit([65 + i] * 4, max_tokens=40, ignore_eos=True) for i in range(8)]
    await harness.step(4)
    before, steps = wake_ups, harness.recorder.steps
    counted = {request_id: harness.generated(request_id) for request_id in ids}
    await harness.step(20)
    assert harness.recorder.steps == steps + 20
    assert wake_ups == before + 20
    assert all(harness.generated(request_id) == counted[request_id] + 20 for request_id in ids)
    await harness.run()


async def test_tokens_go_out_when_the_next_step_is_built_and_not_started(
    core: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = core()
    harness.submit([65] * 4, max_tokens=12, ignore_eos=True)
    await harness.step(4)
    order: list[str] = []
    started = mx.async_eval

    def note_start(*arrays: Any) -> None:
        order.append("start")
        started(*arrays)  # type: ignore[no-untyped-call]

    def note_delivery(batch: list[Any]) -> None:
        order.append("deliver")
        deliver(batch)

    monkeypatch.setattr(mx, "async_eval", note_start)
    monkeypatch.setattr("mlxceld.engine.output_processor.deliver", note_delivery)
    await harness.step(3)
    assert order == ["deliver", "start"] * 3
    await harness.run()


async def test_tokens_do_not_wait_for_a_prompts_chunk(
    core: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = core(prefill_chunk=16)
    stream = harness.submit([65] * 4, max_tokens=40, ignore_eos=True)
    await harness.step(4)
    harness.submit([66] * 60, max_tokens=2, ignore_eos=True)
    plain, at_chunks = engine_core.run_chunk, []

    def run_chunk(*arguments: Any) -> None:
        told = harness.core._answers._outbox  # what callers have not got yet
        at_chunks.append((list(told), harness.generated(stream)))
        plain(*arguments)

    monkeypatch.setattr(engine_core, "run_chunk", run_chunk)
    await harness.step(3)
    assert [outbox for outbox, _ in at_chunks] == [[], [], []]
    tokens = [count for _, count in at_chunks]
    assert tokens[0] < tokens[1] < tokens[2]
    await harness.run()


async def test_waiting_for_an_event_costs_one_future(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = EventStream("a", lambda _: True)
    bell = Wakeup()
    stream.share(bell)
    loop = asyncio.get_running_loop()
    made = 0
    plain = loop.create_future

    def count() -> asyncio.Future[Any]:
        nonlocal made
        made += 1
        return plain()

    monkeypatch.setattr(loop, "create_future", count)
    got: list[Any] = []

    async def listen() -> None:
        while len(got) < 50:
            await bell.wait()
            got.extend(stream.drain())

    listening = asyncio.create_task(listen())
    for _ in range(50):
        await asyncio.sleep(0)
        stream.push(Delta("a", (1,)))
        await asyncio.sleep(0)
    await listening
    assert len(got) == 50
    assert made == 50
