from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import pytest

from mlxceld.models.errors import ModelError
from mlxceld.models.folder import check_folder
from mlxceld.models.gguf import importer
from mlxceld.models.gguf.importer import import_gguf
from tiny_gguf import decode, llama_metadata, llama_tensors, tiny_llama, write_gguf

PROMPT = mx.array([[5, 77, 300, 12, 250, 9, 9, 31]])


def quiet(line: str) -> None:
    assert line


def write_model(folder: Path, *, tied: bool = False, kinds: Any = None, **changes: Any) -> Path:
    tensors = llama_tensors(tiny_llama(tied=tied), kinds)
    return write_gguf(folder / "Tiny.Q.gguf", llama_metadata(**changes), tensors)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_the_imported_model_computes_what_the_original_does(
    tmp_path: Path, tied: bool, bias: bool
) -> None:
    original = tiny_llama(tied=tied, bias=bias)
    file = write_gguf(tmp_path / "m.gguf", llama_metadata(), llama_tensors(original))
    folder = import_gguf(file, tmp_path / "state", quiet, quantized=False)
    check_folder(folder)
    model, tokenizer = mlx_lm.load(str(folder))
    assert mx.array_equal(model(PROMPT), original(PROMPT)).item()
    assert tokenizer.encode("hi 42") == [104, 105, 32, 52, 50]
    assert tokenizer.eos_token_ids == {258}


MIXED = {
    "token_embd": "Q8_0",
    "output": "F16",
    "attn_q": "Q4_1",
    "attn_k": "Q4_0",
    "ffn_up": "Q4_1",
    "ffn_gate": "Q4_0",
    "ffn_down": "Q8_0",
}


def test_float32_weights_are_the_files_own_values(tmp_path: Path) -> None:
    folder = import_gguf(
        write_model(tmp_path, kinds=MIXED), tmp_path / "state", quiet, quantized=False
    )
    weights = mx.load(str(folder / "model.safetensors"))
    assert {array.dtype for array in weights.values()} == {mx.float32}
    tensors = llama_tensors(tiny_llama(), MIXED)
    ours = np.array(weights["model.layers.1.mlp.down_proj.weight"])
    np.testing.assert_array_equal(ours, decode(tensors["blk.1.ffn_down.weight"]))


def test_quantized_import_keeps_the_quantization_and_computes_the_same(tmp_path: Path) -> None:
    file = write_model(tmp_path, kinds=MIXED)
    plain, _ = mlx_lm.load(str(import_gguf(file, tmp_path / "s", quiet, quantized=False)))
    folder = import_gguf(file, tmp_path / "s", quiet, quantized=True)
    packed, _ = mlx_lm.load(str(folder))
    layer = packed.model.layers[0]
    assert isinstance(layer.self_attn.q_proj, nn.QuantizedLinear)
    assert (layer.self_attn.q_proj.bits, layer.mlp.down_proj.bits) == (4, 8)
    assert isinstance(packed.model.embed_tokens, nn.QuantizedEmbedding)
    assert type(packed.lm_head) is nn.Linear
    assert type(layer.self_attn.v_proj) is nn.Linear
    section = json.loads((folder / "config.json").read_text())["quantization"]
    assert (section["group_size"], section["bits"]) == (32, 4)
    assert section["model.embed_tokens"] == {"group_size": 32, "bits": 8}
    theirs = packed(PROMPT).astype(mx.float32)
    assert mx.abs(plain(PROMPT) - theirs).max().item() < 0.02


def test_a_second_import_finds_the_first(tmp_path: Path) -> None:
    file = write_model(tmp_path)
    lines: list[str] = []
    first = import_gguf(file, tmp_path / "state", lines.append, quantized=False)
    assert any(line.startswith("importing Tiny.Q.gguf") for line in lines)
    assert first.name.startswith("Tiny.Q-")
    assert first.name.endswith("-f32")
    lines.clear()
    assert import_gguf(file, tmp_path / "state", lines.append, quantized=False) == first
    assert lines == []


def test_a_changed_file_is_imported_anew(tmp_path: Path) -> None:
    file = write_model(tmp_path)
    first = import_gguf(file, tmp_path / "state", quiet, quantized=False)
    os.utime(file, (1, 1))
    assert import_gguf(file, tmp_path / "state", quiet, quantized=False) != first


def test_an_interrupted_import_leaves_nothing(tmp_path: Path) -> None:
    file = write_model(tmp_path)

    def interrupt_midway(line: str) -> None:
        if "%" in line and int(line.rsplit(" ", 1)[1][:-1]) >= 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_gguf(file, tmp_path / "state", interrupt_midway, quantized=False)
    assert [entry.name for entry in (tmp_path / "state/models").iterdir()] == [".lock"]
    folder = import_gguf(file, tmp_path / "state", quiet, quantized=False)
    check_folder(folder)


KILLED = """
import os, signal, sys
from pathlib import Path
from mlxceld.models.gguf.importer import import_gguf

def progress(line):
    if "%" in line:
        os.kill(os.getpid(), signal.SIGKILL)

import_gguf(Path(sys.argv[1]), Path(sys.argv[2]), progress, quantized=False)
"""


def test_a_killed_import_leaves_no_model_and_is_swept_away(tmp_path: Path) -> None:
    file, state = write_model(tmp_path), tmp_path / "state"
    killed = subprocess.run([sys.executable, "-c", KILLED, file, state], check=False)
    assert killed.returncode == -signal.SIGKILL
    left = {entry.name for entry in (state / "models").iterdir()}
    assert len(left) == 2
    assert all(name == ".lock" or name.startswith(".importing-") for name in left)
    folder = import_gguf(file, state, quiet, quantized=False)
    check_folder(folder)
    assert {entry.name for entry in (state / "models").iterdir()} == {".lock", folder.name}


def test_two_imports_at_once_give_one_folder(tmp_path: Path) -> None:
    file = write_model(tmp_path)
    inside, go_on = threading.Event(), threading.Event()
    waiting = threading.Event()
    results: list[Path] = []

    def slow(line: str) -> None:
        if not inside.is_set():
            inside.set()
            assert go_on.wait(30)

    def second(line: str) -> None:
        if line == "waiting for another import to end":
            waiting.set()
        else:
            raise AssertionError(f"the second import did work of its own: {line}")

    def run(progress: Any) -> None:
        results.append(import_gguf(file, tmp_path / "state", progress, quantized=False))

    first_thread = threading.Thread(target=run, args=(slow,))
    first_thread.start()
    assert inside.wait(30)
    second_thread = threading.Thread(target=run, args=(second,))
    second_thread.start()
    assert waiting.wait(30)
    go_on.set()
    first_thread.join(30)
    second_thread.join(30)
    assert len(results) == 2
    assert results[0] == results[1]
    check_folder(results[0])


def test_a_truncated_file_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    file = write_model(tmp_path)
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ModelError, match="truncated, tensor"):
        import_gguf(file, tmp_path / "state", quiet, quantized=False)
    assert not (tmp_path / "state").exists()


def test_a_full_disk_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(importer.shutil, "disk_usage", lambda path: usage(10, 10, 2**20))
    with pytest.raises(ModelError, match=r"needs \d+ MiB in .*, and 1 MiB are free"):
        import_gguf(write_model(tmp_path), tmp_path / "state", quiet, quantized=False)


def test_an_unwritable_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file in the way")
    with pytest.raises(ModelError, match="cannot be imported into"):
        import_gguf(write_model(tmp_path), tmp_path / "state", quiet, quantized=False)
