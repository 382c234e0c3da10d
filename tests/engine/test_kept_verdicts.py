"""A second start on the same model makes no check; ``cache verify`` makes all of them anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_harness import Result, load_tiny, make_settings
from mlxceld.engine import checks as checks_module
from mlxceld.engine.engine import Engine
from mlxceld.engine.events import FinishReason
from mlxceld.engine.request import GenerationRequest, SamplingParams
from mlxceld.engine.shared_probe import SharingVerdict
from mlxceld.telemetry.status import EngineState, ModelStatus
from tiny_models import TinyModels

Start = Callable[..., Engine]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the checks that are made."""
    names: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(checks_module, name)

        def make(*args: Any) -> Any:
            names.append(name)
            return real(*args)

        return make

    for name in ("probe", "probe_sharing", "verify"):
        monkeypatch.setattr(checks_module, name, counted(name))
    return names


@pytest.fixture
def start(tiny_models: TinyModels, tmp_path: Path) -> Iterator[Start]:
    """Starts engines on one state folder, and ends each before the next."""
    running: list[Engine] = []

    async def make(family: str = "llama", **settings: Any) -> Engine:
        if running:
            assert running.pop().stop(30)
        folder = tiny_models.folder(family)
        engine = Engine(make_settings(tmp_path, **settings), lambda _: load_tiny(folder))
        running.append(engine)
        engine.start()
        async with asyncio.timeout(60):
            while engine.status.state is EngineState.LOADING:
                await asyncio.sleep(0.002)
        return engine

    yield make
    for engine in running:
        assert engine.stop(30)


def _model(engine: Engine) -> ModelStatus:
    assert engine.status.model is not None
    return engine.status.model


async def test_the_second_start_makes_no_check(
    start: Start, made: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    first = _model(await start())
    assert sorted(made) == ["probe", "probe_sharing", "verify"]
    assert "checked at" not in caplog.text
    second = _model(await start())
    assert len(made) == 3
    assert "batching and reuse: checked at" in caplog.text
    for name in ("batching", "reuse", "sharing", "checked_at"):
        assert getattr(second, name) == getattr(first, name)
    assert second.sharing == "read in place"


async def test_other_settings_and_other_models_are_checked(start: Start, made: list[str]) -> None:
    await start()
    await start(kv_backend="dense")
    await start("mamba")
    assert made.count("probe") == made.count("verify") == 3
    # Each is known from now on.
    await start()
    await start("mamba")
    assert made.count("probe") == 3


async def test_verify_makes_all_checks_anew_and_replaces_what_was_kept(
    start: Start, made: list[str]
) -> None:
    before = _model(await start())
    engine = await start()
    report = await asyncio.wrap_future(engine.cache.verify())
    assert report.passed
    assert report.tokens_computed
    assert sorted(made) == sorted(["probe", "probe_sharing", "verify"] * 2)
    assert _model(engine).checked_at > before.checked_at
    assert _model(await start()).checked_at > before.checked_at
    assert len(made) == 6


async def test_a_check_that_fails_is_obeyed_by_later_starts(
    start: Start, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("mlxceld.kv.snapshots.restore", lambda *_: 1 / 0)
        assert _model(await start()).reuse == "none"
    engine = await start()
    assert len(made) == 3
    assert _model(engine).reuse == "none"
    assert not engine.status.cache.enabled


async def test_what_fails_in_service_is_told_and_known_to_the_next_start(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """deepseek_v3's latent attention cannot read blocks in place; a check says that it can."""
    monkeypatch.setattr(checks_module, "probe_sharing", lambda *_: SharingVerdict(True, False))
    engine = await start("deepseek_v3")
    assert _model(engine).sharing == "read in place"
    shared = [i % 250 for i in range(300)]
    streams = engine.submit(
        [
            GenerationRequest(
                f"r{i}", [*shared, 7, i], SamplingParams(temperature=0.0, max_tokens=8), session="s"
            )
            for i in range(3)
        ]
    )
    for stream in streams:
        result = Result()
        async with asyncio.timeout(60):
            async for event in stream:
                result.add([event])
        assert result.reason is FinishReason.LENGTH
    async with asyncio.timeout(60):
        while engine.status.busy or _model(engine).sharing == "read in place":
            await asyncio.sleep(0.002)
    assert _model(engine).sharing == "gathered in each step"
    assert "attention" in _model(engine).sharing_reason
    assert engine.status.faults == 0
    assert _model(await start("deepseek_v3")).sharing == "gathered in each step"
