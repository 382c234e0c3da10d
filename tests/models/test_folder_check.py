from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from mlx.core import load, save_safetensors

from mlxceld.models.errors import ModelError
from mlxceld.models.folder import check_folder
from mlxceld.models.plausible import check_sizes
from tiny_models import TinyModels


@pytest.fixture
def folder(tiny_model_folders: TinyModels, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_folders.folder("llama"), tmp_path / "llama"))


def split_into_shards(folder: Path, *, index: bool) -> list[Path]:
    weights = load(str(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    shards, places = [], {}
    for number in range(3):
        shard = folder / f"model-{number + 1:05d}-of-00003.safetensors"
        part = {name: weights[name] for name in names[number::3]}
        save_safetensors(str(shard), part)
        places |= dict.fromkeys(part, shard.name)
        shards.append(shard)
    if index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return shards


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        check_folder(folder)
    text = str(caught.value)
    assert str(folder) in text
    assert "\n" not in text
    return text


def test_a_whole_folder_gives_its_config(folder: Path) -> None:
    assert check_folder(folder)["model_type"] == "llama"
    split_into_shards(folder, index=True)
    assert check_folder(folder)["model_type"] == "llama"


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("missing", [0, 2])
def test_a_missing_shard_is_named(folder: Path, index: bool, missing: int) -> None:
    shard = split_into_shards(folder, index=index)[missing]
    shard.unlink()
    assert f"1 of 3 weight files missing, first {shard.name}" in refusal(folder)


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_a_truncated_weight_file_is_named(folder: Path, length: int) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:length])
    assert "model.safetensors: truncated" in refusal(folder)


def test_a_damaged_weight_file_is_named(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[8:20] = b"not json at "
    file.write_bytes(content)
    assert "model.safetensors: damaged header" in refusal(folder)


def test_missing_parts_are_named(folder: Path, tmp_path: Path) -> None:
    assert "no such folder" in refusal(tmp_path / "nowhere")
    assert "not a folder" in refusal(folder / "config.json")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert "no tokenizer (expected tokenizer.json)" in refusal(folder)
    (folder / "model.safetensors").unlink()
    assert "no weights (expected model*.safetensors)" in refusal(folder)
    (folder / "config.json").unlink()
    assert "no config.json (expected an MLX model)" in refusal(folder)
    (folder / "m.gguf").write_bytes(b"GGUF")
    assert f"to serve its GGUF file give {folder / 'm.gguf'}" in refusal(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "cannot be read as JSON"), ("[]", "no model_type"), ("{}", "no model_type")],
)
def test_a_bad_config_is_named(folder: Path, content: str, message: str) -> None:
    (folder / "config.json").write_text(content)
    assert message in refusal(folder)


def test_a_bad_index_is_named(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weights": 1}')
    assert "not an index of weight files" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("num_hidden_layers", 10**7, "is 10000000, and the weights have 4 layers"),
        ("num_hidden_layers", 1e30, "num_hidden_layers is"),
        ("hidden_size", 10**9, "hidden_size is 1000000000, and no weight has a dimension above"),
        ("vocab_size", 2**40, "vocab_size is"),
        ("num_attention_heads", 10**8, "num_attention_heads is"),
        ("num_experts", 10**8, "num_experts is"),
        ("text_config", {"num_hidden_layers": 10**7}, "text_config.num_hidden_layers is"),
    ],
)
def test_a_config_that_the_weights_cannot_be_of(
    folder: Path, name: str, value: object, said: str
) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_bytes()), name: value}))
    assert said in refusal(folder)


def test_a_config_that_is_nested_without_end(folder: Path) -> None:
    (folder / "config.json").write_text('{"a":' * 100_000)
    assert "cannot be read as JSON" in refusal(folder)


def test_names_without_numbers_are_counted(tmp_path: Path) -> None:
    shapes = {"stacked": [48, 64, 64], "embedding": [100, 64]}
    check_sizes(tmp_path, {"num_hidden_layers": 24, "hidden_size": 64}, shapes)
    with pytest.raises(ModelError, match="weights have 2 layers"):
        check_sizes(tmp_path, {"num_hidden_layers": 10**5}, shapes)


def test_experts_are_no_layers(tmp_path: Path) -> None:
    shapes = {f"layers.0.experts.{n}.weight": [64, 64] for n in range(200)}
    with pytest.raises(ModelError, match="weights have 1 layers"):
        check_sizes(tmp_path, {"num_hidden_layers": 100}, shapes)


def test_values_that_are_no_sizes_are_left_to_the_loader(tmp_path: Path) -> None:
    config = {"num_hidden_layers": None, "hidden_size": "x", "num_experts": True, "n_layer": [1]}
    check_sizes(tmp_path, config, {"a.0.b": [2]})
