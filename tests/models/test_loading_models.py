from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import quantize_model, save_model

from chat_templates import CASES
from mlxceld.models.errors import ModelError
from mlxceld.models.folder import ModelFolder
from mlxceld.models.loading import LoadedModel, load_model
from tiny_models import TinyModels, tiny_families, write_tiny_tokenizer

PROMPT = mx.array([[5, 77, 300, 12]])


def load(folder: Path, lines: list[str] | None = None) -> LoadedModel:
    progress = [] if lines is None else lines
    return load_model(ModelFolder(folder, "tiny", "folder"), progress=progress.append)


@pytest.fixture
def llama(tiny_model_folders: TinyModels, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_folders.folder("llama"), tmp_path / "llama"))


@pytest.mark.parametrize("family", tiny_families())
def test_every_family_loads_as_mlx_lm_loads_it(tiny_model_folders: TinyModels, family: str) -> None:
    folder = tiny_model_folders.folder(family)
    loaded = load(folder)
    status = loaded.status
    assert (status.id, status.family, status.path) == ("tiny", family, str(folder))
    assert (status.device, status.dtype) == ("cpu", "float32")
    assert status.vocab_size == loaded.text.vocab_size == 320
    assert sum(status.layer_caches.values()) > 0
    plain, _ = mlx_lm.load(str(folder))
    sizes = [array.size for _, array in tree_flatten(plain.parameters())]
    assert (status.parameters, status.weight_bytes) == (sum(sizes), 4 * sum(sizes))
    assert mx.array_equal(loaded.module(PROMPT), plain(PROMPT)).item()


def test_progress_tells_every_stage(llama: Path) -> None:
    lines: list[str] = []
    load(llama, lines)
    assert lines[0] == f"loading tiny from {llama}"
    parts = [line.split()[2] for line in lines if line.startswith("loading weights")]
    assert parts[-1] == "8/8"
    assert parts == sorted(parts)
    assert lines[-2] == "loading tokenizer"
    assert lines[-1].startswith("loaded tiny: 0.2 million parameters, float32, 738.2 KiB")


def test_a_load_says_how_conversations_are_fitted(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tiny_tokenizer(llama, chat_template=CASES["call_ids_of_nine"])
    with caplog.at_level(logging.INFO, "mlxceld.models.chat"):
        steps = load(llama).status.template_steps
    assert list(steps) == ["developer_as_system", "short_call_ids"]
    assert "chat template: developer_as_system, short_call_ids" in caplog.text


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_weights_become_float32_without_a_gpu(llama: Path, dtype: mx.Dtype) -> None:
    file = str(llama / "model.safetensors")
    mx.save_safetensors(file, {n: a.astype(dtype) for n, a in mx.load(file).items()})
    lines: list[str] = []
    loaded = load(llama, lines)
    assert {array.dtype for _, array in tree_flatten(loaded.module.parameters())} == {mx.float32}
    assert loaded.status.dtype == "float32"
    assert "no GPU: weights are held in float32" in lines


def test_quantized_weights_are_unpacked_without_a_gpu(llama: Path) -> None:
    model, _ = mlx_lm.load(str(llama))
    config = json.loads((llama / "config.json").read_text())
    model, config = quantize_model(model, config, group_size=32, bits=4)
    (llama / "model.safetensors").unlink()
    save_model(llama, model)
    (llama / "config.json").write_text(json.dumps(config))
    lines: list[str] = []
    loaded = load(llama, lines)
    assert "no GPU: quantized weights are unpacked to float32" in lines
    layer = loaded.module.model.layers[0].mlp.down_proj
    assert type(layer) is nn.Linear
    packed = model.model.layers[0].mlp.down_proj
    unpacked = mx.dequantize(packed.weight, packed.scales, packed.biases, 32, 4)
    assert mx.array_equal(layer.weight, unpacked).item()
    assert loaded.status.parameters == 188992
    assert mx.abs(loaded.module(PROMPT) - model(PROMPT)).max().item() < 1e-4


def test_memory_holds_the_weights_once(tiny_model_folders: TinyModels) -> None:
    folder = tiny_model_folders.folder("llama")
    mx.clear_cache()
    before = mx.get_active_memory()
    loaded = load(folder)
    used = mx.get_active_memory() - before
    assert used <= loaded.status.weight_bytes * 1.1
    del loaded
    mx.clear_cache()
    assert mx.get_active_memory() - before < 4096


def test_the_context_length_is_the_configs(tiny_model_folders: TinyModels) -> None:
    folder = tiny_model_folders.folder("qwen3_5", context_length=777)
    assert load(folder).status.context_length == 777


def test_an_assumed_context_length_is_told(tiny_model_folders: TinyModels) -> None:
    lines: list[str] = []
    loaded = load(tiny_model_folders.folder("mamba"), lines)
    assert loaded.status.context_length == 8192
    assert "the config names no context length; 8192 tokens are assumed" in lines


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "nonesuch"}, "Model type nonesuch not supported by the installed mlx-lm"),
        ({"hidden_size": 128}, "shape"),
        ({"num_hidden_layers": 5}, "Missing"),
        ({"num_hidden_layers": 3}, "not in model"),
        ({"hidden_size": None}, "cannot be built from its config.json: TypeError"),
    ],
)
def test_a_model_that_does_not_load_is_one_line(
    llama: Path, changes: dict[str, object], message: str
) -> None:
    change_config(llama, **changes)
    with pytest.raises(ModelError, match=message) as caught:
        load(llama)
    text = str(caught.value)
    assert text.startswith(f"model {llama}: ")
    assert "\n" not in text
    assert len(text) < 500


def test_a_missing_shard_is_found_before_loading(llama: Path) -> None:
    (llama / "model.safetensors").rename(llama / "model-00001-of-00002.safetensors")
    lines: list[str] = []
    with pytest.raises(ModelError, match=r"first model-00002-of-00002\.safetensors"):
        load(llama, lines)
    assert lines == []


def test_code_in_a_model_folder_is_not_run(llama: Path) -> None:
    (llama / "evil.py").write_text(f"open({str(llama / 'ran')!r}, 'w')")
    change_config(llama, model_file="evil.py")
    with pytest.raises(ModelError, match=r"evil\.py"):
        load(llama)
    assert not (llama / "ran").exists()


def test_a_broken_tokenizer_is_one_line(llama: Path) -> None:
    (llama / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load(llama)
