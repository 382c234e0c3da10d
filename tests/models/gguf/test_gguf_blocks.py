from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlxceld.models.errors import ModelError
from mlxceld.models.gguf.blocks import (
    byte_length,
    read_float32,
    read_plain,
    read_quantized,
)
from mlxceld.models.gguf.reader import GgufFile
from tiny_gguf import decode, encode, write_gguf

KINDS = ("F32", "F16", "Q4_0", "Q4_1", "Q8_0")
QUANTIZED = KINDS[2:]


def tensor(kind: str) -> tuple[str, tuple[int, ...], bytes]:
    values = np.random.default_rng(1).normal(size=(6, 96)).astype(np.float32)
    values[2, 32:64] = 0  # a block without any scale
    return encode(values, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_values_are_the_formats_own(tmp_path: Path, kind: str) -> None:
    given = tensor(kind)
    file = GgufFile(write_gguf(tmp_path / "t.gguf", {}, {"t": given}))
    assert byte_length(file.tensors["t"]) == len(given[2])
    np.testing.assert_array_equal(read_float32(file, file.tensors["t"]), decode(given))


@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantized_tensors_unpack_in_mlx_to_the_same_values(tmp_path: Path, kind: str) -> None:
    given = tensor(kind)
    file = GgufFile(write_gguf(tmp_path / "t.gguf", {}, {"t": given}))
    parts = read_quantized(file, file.tensors["t"])
    unpacked = mx.dequantize(
        mx.array(parts.packed),
        mx.array(parts.scales).astype(mx.float32),
        mx.array(parts.biases).astype(mx.float32),
        group_size=32,
        bits=parts.bits,
    )
    # Codes times scale plus bias rounds elsewhere than (code - centre) times scale.
    np.testing.assert_allclose(np.array(unpacked), decode(given), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantized_tensors_are_what_mlx_reads_itself(tmp_path: Path, kind: str) -> None:
    path = write_gguf(tmp_path / "t.gguf", {}, {"t.weight": tensor(kind)})
    theirs = mx.load(str(path))
    file = GgufFile(path)
    parts = read_quantized(file, file.tensors["t.weight"])
    for name, ours in (
        ("weight", parts.packed),
        ("scales", parts.scales),
        ("biases", parts.biases),
    ):
        np.testing.assert_array_equal(np.array(theirs[f"t.{name}"]), ours)


def test_plain_tensors_keep_their_type(tmp_path: Path) -> None:
    file = GgufFile(write_gguf(tmp_path / "t.gguf", {}, {"t": tensor("F16")}))
    assert read_plain(file, file.tensors["t"]).dtype == np.float16


def test_rows_that_are_not_whole_blocks_are_refused(tmp_path: Path) -> None:
    file = GgufFile(write_gguf(tmp_path / "t.gguf", {}, {"t": ("Q4_0", (2, 48), bytes(64))}))
    with pytest.raises(ModelError, match=r"rows of 48 values, expected a multiple of 32"):
        byte_length(file.tensors["t"])
