"""A model that gives no numbers is refused, with the place where they end."""

from __future__ import annotations

import shutil
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm import utils as mlx_lm_utils
from mlx_lm.models.cache import make_prompt_cache

from mlxceld.models.errors import ModelError
from mlxceld.models.finite import check_finite
from mlxceld.models.folder import ModelFolder
from mlxceld.models.loading import load_model
from tiny_models import TinyModels


@pytest.fixture
def folder(tiny_model_folders: TinyModels, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_folders.folder("llama"), tmp_path / "llama"))


def damage(folder: Path, name: str, value: float, *, row: int | None = None) -> None:
    """Put a value into a weight, into all of it or one row."""
    file = folder / "model.safetensors"
    weights = dict(mx.load(str(file)))
    whole = mx.full(weights[name].shape, value, dtype=weights[name].dtype)
    if row is not None:
        whole = mx.where(mx.arange(whole.shape[0])[:, None] == row, whole, weights[name])
    weights[name] = whole
    mx.eval(weights)
    mx.save_safetensors(str(file), weights, metadata={"format": "mlx"})


def load(folder: Path, said: list[str]) -> None:
    load_model(ModelFolder(folder, "tiny", "folder"), progress=said.append)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_damaged_weight_is_named(folder: Path, value: float) -> None:
    name = "model.layers.2.mlp.up_proj.weight"
    damage(folder, name, value)
    with pytest.raises(ModelError) as caught:
        load(folder, [])
    assert str(caught.value) == (
        f"model {folder}: its logits are not numbers (NaN or infinite):"
        f" the weight {name} has NaN or infinite values"
    )


def test_the_layer_whose_output_overflows_is_named(folder: Path) -> None:
    # Each is a number, and their product is none.
    damage(folder, "model.layers.1.mlp.up_proj.weight", 3e38)
    with pytest.raises(ModelError, match=r"layer 1 of 4 .*first whose output is not.*float32"):
        load(folder, [])


def test_what_comes_after_the_layers_is_told_apart(folder: Path) -> None:
    damage(folder, "model.norm.weight", 3e38)
    with pytest.raises(ModelError, match="all layers give numbers"):
        load(folder, [])


def test_a_layer_in_half_precision(folder: Path) -> None:
    module, _ = mlx_lm_utils.load_model(folder, lazy=False)
    module.set_dtype(mx.float16)
    layer = module.layers[3]
    for part in (layer.mlp.up_proj, layer.mlp.down_proj):
        part.weight = mx.full(part.weight.shape, 6e4, dtype=mx.float16)
    before = type(layer).__call__
    logits = module(mx.array([[0]]), cache=make_prompt_cache(module))
    with pytest.raises(ArithmeticError, match=r"layer 3 of 4 .*float16"):
        check_finite(module, logits, lambda _: None)
    # The layers are as they were.
    assert type(layer).__call__ is before


def test_one_damaged_token_does_not_stop_a_load(folder: Path) -> None:
    damage(folder, "model.embed_tokens.weight", float("nan"), row=0)
    said: list[str] = []
    load(folder, said)
    (line,) = [line for line in said if line.startswith("warning")]
    assert "after token 0 are not numbers: the weight model.embed_tokens.weight" in line


def test_a_sound_model_is_not_looked_at_twice(folder: Path) -> None:
    said: list[str] = []
    load(folder, said)
    assert not [line for line in said if "numbers" in line]
