from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from mlx.core import load, save_safetensors

from mlxceld.models.errors import ModelError
from mlxceld.models.folder import check_folder
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
