"""What has to be installed is said before anything is fetched."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from engine_harness import make_settings
from mlxceld.daemon import load_model
from mlxceld.models import demo
from mlxceld.models.errors import ModelError
from mlxceld.models.requirements import require_mlx


def hide_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def without(name: str) -> object:
        if name == "mlx.core":
            raise ModuleNotFoundError("No module named 'mlx'")
        return found(name)

    monkeypatch.setattr(importlib.util, "find_spec", without)


def test_mlx_is_here() -> None:
    require_mlx()


@pytest.mark.parametrize(
    ("platform", "advice"), [("linux", r"mlxceld\[cpu\]"), ("darwin", "pip install mlx")]
)
def test_a_missing_mlx_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, platform: str, advice: str
) -> None:
    hide_mlx(monkeypatch)
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(ModelError, match=advice):
        require_mlx()


def test_it_is_said_before_a_download_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hide_mlx(monkeypatch)
    monkeypatch.setattr(demo, "demo_file", lambda *_: pytest.fail("a download began"))
    with pytest.raises(ModelError, match="MLX is not installed"):
        load_model(make_settings(tmp_path, model="demo"))(lambda line: None)
