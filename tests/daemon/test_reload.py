"""Settings read again in a running daemon: the limits that follow from the loaded model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxceld.api.keys import ApiKeys
from mlxceld.config import ResolvedSettings, Source, resolve
from mlxceld.engine.engine import Engine
from mlxceld.models.folder import ModelFolder
from mlxceld.models.loading import load_model
from mlxceld.reload import Reloader
from mlxceld.telemetry.metrics import Metrics
from mlxceld.telemetry.status import EngineState
from tiny_models import TinyModels

MIB = 2**20


class Reloaded:
    """An engine with a tiny model, and a settings file to change."""

    def __init__(self, engine: Engine, file: Path, read: Callable[[], ResolvedSettings]) -> None:
        self.engine = engine
        self._file = file
        self._reloader = Reloader(
            read(), ApiKeys.none(), read, Metrics(lambda: engine.status), engine=engine
        )

    @property
    def capacity(self) -> int:
        return self.engine.status.cache.capacity_bytes

    def with_file(self, text: str) -> dict[str, Any]:
        self._file.write_text(text)
        return asyncio.run(self._reloader.reload("test")).applied


@pytest.fixture
def reloaded(tmp_path: Path, tiny_models: TinyModels):
    file = tmp_path / "c.yaml"
    # The budget bounds what is derived, so that it is not the default of the table.
    file.write_text("kv_cache_budget: 64MiB\n")

    def read() -> ResolvedSettings:
        return resolve({"state_dir": tmp_path}, environ={}, config_file=file)

    resolved = read()
    folder = ModelFolder(path=tiny_models.folder("llama"), id="tiny", origin="folder")
    given = {name for name, source in resolved.sources.items() if source is not Source.DEFAULT}
    engine = Engine(
        resolved.settings, lambda progress: load_model(folder, progress=progress), given=given
    )
    states: list[EngineState] = []
    engine.on_state(lambda state, detail: states.append(state))
    engine.start()
    try:
        engine.cache.entries().result(60)
        yield Reloaded(engine, file, read)
    finally:
        assert engine.stop(60)


def test_a_capacity_that_is_set_no_longer_is_derived_again(reloaded):
    derived = reloaded.capacity
    assert derived == 64 * MIB
    name = "prompt_cache.capacity_bytes"
    head = "kv_cache_budget: 64MiB\n"
    assert reloaded.with_file(f"{head}{name}: 3MiB\n")[name]["after"] == "3MiB"
    assert reloaded.capacity == 3 * MIB
    assert reloaded.with_file(head)[name] == {"before": "3MiB", "after": "64MiB"}
    assert reloaded.capacity == derived


def test_the_number_of_the_default_counts_once_it_is_set(reloaded):
    name = "prompt_cache.capacity_bytes"
    reloaded.with_file(f"kv_cache_budget: 64MiB\n{name}: 2GiB\n")
    assert reloaded.capacity == 2048 * MIB
