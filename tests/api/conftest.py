"""One engine on a tiny model for all tests of the API."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from api_harness import ScriptedEngine
from damaged_models import damage_token
from engine_harness import load_tiny, make_settings
from mlxceld.config import Settings
from mlxceld.engine.engine import Engine
from mlxceld.telemetry.status import EngineState
from tiny_models import TinyModels

CONTEXT_LENGTH = 512
ROOMY_CONTEXT_LENGTH = 16384


@pytest.fixture(scope="session")
def engine(tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A running engine with the model ``llama`` of ``CONTEXT_LENGTH`` tokens."""
    folder = tiny_models.folder("llama", context_length=CONTEXT_LENGTH)
    yield from _running(folder, tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def roomy(tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """As ``engine``, with a context for the prompts that coding agents send."""
    folder = tiny_models.folder("llama", context_length=ROOMY_CONTEXT_LENGTH)
    yield from _running(folder, tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def damaged_engine(
    tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """As ``engine``; what its model computes from ``DAMAGED_TOKEN`` is no number."""
    source = tiny_models.folder("llama", context_length=CONTEXT_LENGTH)
    folder = tmp_path_factory.mktemp("damaged") / "llama"
    yield from _running(damage_token(source, folder), tmp_path_factory.mktemp("state"))


def _running(folder: Path, state: Path) -> Iterator[Engine]:
    engine = Engine(make_settings(state), lambda _: load_tiny(folder))
    ready = threading.Event()
    engine.on_state(lambda state, _: ready.set() if state is not EngineState.LOADING else None)
    engine.start()
    assert ready.wait(60)
    assert engine.status.state is EngineState.READY, engine.status.detail
    yield engine
    assert engine.stop(30)


@pytest.fixture
def scripted(engine: Engine) -> ScriptedEngine:
    return ScriptedEngine(engine.text, engine.status)


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Settings]:
    return lambda **overrides: make_settings(tmp_path, **overrides)


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Any]:
    """Waits until a condition of another thread or task holds."""

    async def wait(condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.001)

    return wait
