"""Fixtures that every room's tests may use."""

from __future__ import annotations

import os
import signal

# A run that a shell put into the background ignores SIGINT, and so would every daemon it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nothing here may reach for the network; set before any hub client is imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Beside other workers a matrix product has one core; its threads would wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import Callable

import pytest
from hypothesis import settings as hypothesis_settings

from engine_harness import CoreHarness, load_tiny
from tiny_models import TinyModels

# The suite tries the same examples in every run; `make explore` tries fresh ones.
hypothesis_settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
hypothesis_settings.register_profile("explore", deadline=None, print_blob=True)
hypothesis_settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    """Tiny model folders, written at first use."""
    return TinyModels(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def tiny_model(tiny_models: TinyModels) -> Callable[..., object]:
    """Loaded tiny models by family; each is loaded once and lives on the main thread."""
    loaded: dict[str, object] = {}

    def load(family: str) -> object:
        if family not in loaded:
            loaded[family] = load_tiny(tiny_models.folder(family))
        return loaded[family]

    return load


@pytest.fixture
def core(tiny_model: Callable[..., object]) -> Callable[..., CoreHarness]:
    """Engine cores over tiny models, driven step by step on the test's own thread."""

    def make(family: str = "llama", **options: object) -> CoreHarness:
        return CoreHarness(tiny_model(family), **options)

    return make
