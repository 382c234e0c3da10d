"""The engine's thread: loading, queue, cancel, faults, flush and the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine_harness import Result, load_tiny, make_settings, random_prompt
from mlxceld.engine.core import EngineCore
from mlxceld.engine.engine import Engine
from mlxceld.engine.errors import (
    ContextLengthError,
    InvalidRequestError,
    NotReadyError,
    QueueFullError,
)
from mlxceld.engine.events import Failed, FailureKind, Finished, FinishReason
from mlxceld.engine.request import GenerationRequest, SamplingParams
from mlxceld.engine.stream import EventStream
from mlxceld.kv import snapshots
from mlxceld.models.errors import ModelError
from mlxceld.prompt_cache.reports import BudgetChange
from mlxceld.telemetry.status import EngineState
from tiny_models import TinyModels

Start = Callable[..., Engine]


@pytest.fixture
def start(tiny_models: TinyModels, tmp_path: Path) -> Iterator[Start]:
    """Engines on threads of their own, stopped at the end."""
    engines: list[Engine] = []

    def make(**overrides: Any) -> Engine:
        folder = tiny_models.folder("llama", context_length=512)
        engine = Engine(make_settings(tmp_path, **overrides), lambda _: load_tiny(folder))
        engines.append(engine)
        engine.start()
        return engine

    yield make
    for engine in engines:
        assert engine.stop(30)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


async def _ready(engine: Engine) -> Engine:
    await _until(lambda: engine.status.state is not EngineState.LOADING)
    return engine


def _request(
    name: str, length: int = 8, *, stream: bool = True, timeout: float = 0.0, **sampling: Any
) -> GenerationRequest:
    params = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True, **sampling}
    return GenerationRequest(
        name,
        random_prompt(length, length),
        SamplingParams(**params),
        stream=stream,
        timeout=timeout,
    )


async def _result(stream: EventStream) -> Result:
    result = Result()
    async with asyncio.timeout(60):
        async for event in stream:
            result.add([event])
    return result


async def test_requests_run_and_are_counted(start: Start) -> None:
    engine = await _ready(start())
    streams = engine.submit([_request("a"), _request("b", 20)])
    results = await asyncio.gather(*map(_result, streams))
    assert [r.reason for r in results] == [FinishReason.LENGTH] * 2
    await _until(lambda: not engine.status.busy and engine.status.running == 0)
    snapshot = engine.status
    assert snapshot.state is EngineState.READY
    assert snapshot.model is not None
    assert snapshot.model.batching == "full"
    assert snapshot.tokens_generated == 12
    assert snapshot.cache.prompt_tokens == 28
    assert snapshot.outcomes == {("completions", "length"): 2}
    assert snapshot.histograms["time_to_first_token_seconds"].count == 2
    assert snapshot.histograms["inter_token_latency_seconds"].count == 10


async def test_what_the_model_cannot_take_is_refused_before_it_is_queued(start: Start) -> None:
    engine = await _ready(start())
    with pytest.raises(ContextLengthError, match=r"maximum context length is 512 tokens"):
        engine.submit([_request("long", 512)])
    with pytest.raises(InvalidRequestError, match="empty") as empty:
        engine.submit([_request("ok"), _request("none", 0)])
    assert empty.value.param == "prompt"
    with pytest.raises(InvalidRequestError, match="token id 320") as bias:
        engine.submit([_request("bias", logit_bias={320: 1.0})])
    assert bias.value.param == "logit_bias"
    with pytest.raises(InvalidRequestError, match="token id 999"):
        engine.submit([GenerationRequest("id", [1, 999], SamplingParams())])
    assert engine.status.requests == ()
    assert not engine.cancel("ok")


async def test_the_queue_has_a_limit_and_all_or_none_get_in(start: Start) -> None:
    engine = await _ready(start(max_batch_size=1, max_queue=2))
    running = engine.submit([_request("running", max_tokens=400)])[0]
    await _until(lambda: engine.status.running == 1)
    waiting = engine.submit([_request("w1"), _request("w2")])
    with pytest.raises(QueueFullError) as full:
        engine.submit([_request("w3")])
    assert (full.value.waiting, full.value.limit) == (2, 2)
    assert full.value.retry_after >= 1
    await _until(lambda: engine.status.queue_rejections == 1)
    assert engine.status.outcomes["completions", "rejected"] == 1
    assert running.cancel()
    results = await asyncio.gather(*map(_result, [running, *waiting]))
    assert results[0].reason is FinishReason.CANCELLED
    assert [r.reason for r in results[1:]] == [FinishReason.LENGTH] * 2


async def test_a_cancelled_stream_frees_its_place(start: Start) -> None:
    engine = await _ready(start())
    stream = engine.submit([_request("a", max_tokens=500)])[0]
    await _until(lambda: any(r.phase == "decode" for r in engine.status.requests))
    assert stream.cancel()
    result = await _result(stream)
    assert result.reason is FinishReason.CANCELLED
    await _until(lambda: engine.status.requests == ())
    assert not engine.cancel("a")


async def test_timeout(start: Start) -> None:
    engine = await _ready(start())
    stream = engine.submit([_request("a", max_tokens=500, timeout=1e-6)])[0]
    assert (await _result(stream)).reason is FinishReason.TIMEOUT


async def test_an_engine_fault_fails_what_runs_and_the_next_request_works(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await _ready(start())
    want = (await _result(engine.submit([_request("want")])[0])).tokens
    with monkeypatch.context() as patch:
        patch.setattr("mlxceld.engine.batch.DecodeBatch.launch", lambda _: 1 / 0)
        for number in range(3):
            end = (await _result(engine.submit([_request(f"f{number}")])[0])).end
            assert isinstance(end, Failed)
            assert end.kind is FailureKind.ENGINE
            assert "ZeroDivisionError" in end.message
    await _until(lambda: engine.status.fault != "" and not engine.status.busy)
    assert engine.status.faults == 3
    assert (await _result(engine.submit([_request("again")])[0])).tokens == want
    await _until(lambda: engine.status.fault == "")


async def test_draining_finishes_what_runs_and_takes_no_more(start: Start) -> None:
    engine = await _ready(start())
    stream = engine.submit([_request("a", max_tokens=50)])[0]
    engine.drain()
    with pytest.raises(NotReadyError, match="draining"):
        engine.submit([_request("b")])
    assert (await _result(stream)).reason is FinishReason.LENGTH
    await _until(lambda: engine.status.state is EngineState.DRAINING)


async def test_stopping_fails_what_runs(start: Start) -> None:
    engine = await _ready(start())
    stream = engine.submit([_request("a", max_tokens=500)])[0]
    await _until(lambda: engine.status.running == 1)
    await asyncio.to_thread(engine.stop, 30)
    end = (await _result(stream)).end
    assert isinstance(end, Failed)
    assert end.kind is FailureKind.SHUTDOWN
    assert engine.status.state is EngineState.STOPPED
    with pytest.raises(NotReadyError, match="stopped"):
        engine.submit([_request("b")])
    with pytest.raises(NotReadyError, match="stopped"):
        engine.cache.flush()


async def test_a_model_that_does_not_load_is_told(tmp_path: Path) -> None:
    def fail(report: Callable[[str], None]) -> Any:
        report("reading weights")
        raise ModelError("no weights in here")

    engine = Engine(make_settings(tmp_path), fail)
    seen: list[tuple[EngineState, str]] = []
    engine.on_state(lambda state, detail: seen.append((state, detail)))
    engine.start()
    await _until(lambda: engine.status.state is EngineState.FAILED)
    assert engine.stop(30)
    assert seen == [
        (EngineState.LOADING, "reading weights"),
        (EngineState.FAILED, "no weights in here"),
    ]
    assert engine.status.detail == "no weights in here"
    with pytest.raises(NotReadyError):
        _ = engine.text


async def test_flush_and_resize_between_steps(start: Start) -> None:
    engine = await _ready(start(prompt_cache={"min_prefix": 4}))
    streams = engine.submit([_request("a", 40), _request("b", 60)])
    await asyncio.gather(*map(_result, streams))
    await _until(lambda: engine.status.cache.entries == 2)
    held = engine.status.cache.bytes
    trial = await asyncio.wrap_future(engine.cache.flush(dry_run=True))
    assert (trial.entries, trial.bytes, trial.dry_run) == (2, held, True)
    small = await asyncio.wrap_future(engine.cache.resize(BudgetChange(max_entries=1)))
    assert small.evicted_entries == 1
    assert engine.status.cache.entries == 1
    assert engine.status.cache.evictions_resize == 1
    done = await asyncio.wrap_future(engine.cache.flush())
    assert done.entries == 1
    assert engine.status.cache.bytes == 0
    stats = engine.status.cache
    assert stats.inserts == stats.entries + stats.evictions_resize + stats.evictions_flush


@pytest.mark.parametrize("limit", ["capacity_bytes", "max_entries"])
async def test_a_store_that_began_at_zero_is_the_same_once_it_has_room(
    start: Start, limit: str
) -> None:
    engine = await _ready(start(prompt_cache={"min_prefix": 4, limit: 0}))
    (stream,) = engine.submit([_request("off", 40)])
    await _result(stream)
    assert not engine.status.cache.enabled
    await asyncio.wrap_future(
        engine.cache.resize(BudgetChange(capacity_bytes=1 << 20, max_entries=10))
    )
    for request_id, expected in (("first", 0), ("again", 39)):
        (stream,) = engine.submit([_request(request_id, 40)])
        end = (await _result(stream)).end
        assert end is not None
        assert end.usage.cached_tokens == expected
    await _until(lambda: engine.status.cache.replaced == 1)
    assert engine.status.cache.paged_blocks_live > 0


async def test_the_trace_is_switched_while_it_runs(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await _ready(start(prompt_cache={"min_prefix": 4}))
    caplog.set_level("INFO", logger="mlxceld.apc")
    await _result(engine.submit([_request("a", 40)])[0])
    await _until(lambda: len(engine.cache.trace_tail(10)) == 1)
    engine.cache.set_trace(True)
    assert engine.status.trace_enabled
    await _result(engine.submit([_request("b", 60)])[0])
    await _until(lambda: len(engine.cache.trace_tail(10)) == 2)
    engine.cache.set_trace(False)
    assert [e.event for e in engine.cache.trace_tail(10)] == ["store", "store"]
    lines = [r.getMessage() for r in caplog.records if r.name == "mlxceld.apc"]
    assert len(lines) == 1
    assert lines[0].startswith("apc_event=store")


async def test_little_is_reserved_while_little_is_stored(start: Start) -> None:
    engine = await _ready(start(kv_cache_budget=64 << 20))
    (stream,) = engine.submit([_request("short", 40)])
    await _result(stream)
    await _until(lambda: engine.status.cache.paged_blocks_live > 0)
    cache = engine.status.cache
    assert cache.paged_blocks_allocated * cache.block_size == 256


async def test_an_idle_engine_gives_memory_back_once_after_work(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for name in ("give_back", "check"):
        original = getattr(EngineCore, name)

        def noted(core: EngineCore, name: str = name, original: Any = original) -> None:
            done.append(name)
            original(core)

        monkeypatch.setattr(EngineCore, name, noted)
    monkeypatch.setattr("mlxceld.engine.engine._IDLE_SWEEP_SECONDS", 0.01)
    engine = await _ready(start())
    done.clear()

    def noted_times(times: int) -> bool:
        return done.count("check") >= times

    for times in (1, 2):
        (stream,) = engine.submit([_request(f"work {times}")])
        await _result(stream)
        await _until(partial(noted_times, times))
        assert done == ["give_back", "check"] * times


async def test_an_engine_that_cannot_give_memory_back_goes_on(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineCore, "give_back", lambda _: 1 / 0)
    monkeypatch.setattr("mlxceld.engine.engine._IDLE_SWEEP_SECONDS", 0.01)
    engine = await _ready(start())

    def faulted(times: int) -> bool:
        return engine.status.faults == times

    for times in (1, 2):
        (stream,) = engine.submit([_request(f"work {times}")])
        assert (await _result(stream)).reason is FinishReason.LENGTH
        await _until(partial(faulted, times))


async def test_the_self_check_runs_between_steps_and_is_told(start: Start) -> None:
    engine = await _ready(start())
    computed = engine.status.cache.background_tokens_computed
    assert computed > 0  # by the check at load
    stream = engine.submit([_request("long", max_tokens=60)])[0]
    report = await asyncio.wrap_future(engine.cache.verify())
    assert report.passed
    assert [check.kind for check in report.checks] == ["pageable", "live"]
    assert (await _result(stream)).reason is FinishReason.LENGTH
    assert engine.status.model is not None
    assert (engine.status.model.reuse, engine.status.model.reuse_reason) == ("blocks", "")
    assert engine.status.cache.background_tokens_computed == 2 * computed


async def test_a_model_that_fails_its_self_check_is_served_uncached(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("this cannot be put back")

    monkeypatch.setattr(snapshots, "restore", refuse)
    engine = await _ready(start())
    assert engine.status.state is EngineState.READY
    model = engine.status.model
    assert model is not None
    assert model.reuse == "none"
    assert "this cannot be put back" in model.reuse_reason
    for name in ("a", "b"):
        result = await _result(engine.submit([_request(name, 80)])[0])
        assert isinstance(result.end, Finished)
        assert result.end.usage.cached_tokens == 0
    await _until(lambda: not engine.status.busy)
    stats = engine.status.cache
    assert (stats.enabled, stats.entries, stats.lookups) == (False, 0, 0)
    # A resize does not bring it back.
    await asyncio.wrap_future(engine.cache.resize(BudgetChange(capacity_bytes=1 << 20)))
    assert not engine.status.cache.enabled
