"""The tensor formats of GGUF that can be imported, in NumPy.

A quantized row is a run of blocks of 32 values; each block has a 16-bit scale ``d`` (and, for
Q4_1, a minimum ``m``) before its values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlxceld.models.errors import ModelError
from mlxceld.models.gguf.reader import GgufFile, TensorInfo

GROUP_SIZE = 32
"""Values that share a scale."""

Array = np.ndarray[Any, np.dtype[Any]]

_BLOCKS: dict[str, np.dtype[Any]] = {
    "Q4_0": np.dtype([("d", "<f2"), ("q", "u1", 16)]),
    "Q4_1": np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]),
    "Q8_0": np.dtype([("d", "<f2"), ("q", "i1", 32)]),
}

_PLAIN: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}

SUPPORTED_TYPES = (*_BLOCKS, "F16", "F32")


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A tensor in MLX's affine format: value = code * scale + bias.

    ``packed`` is uint32 of shape (rows, columns * bits / 32), the first code in the lowest bits;
    ``scales`` and ``biases`` are float16 of shape (rows, columns / 32).
    """

    packed: Array
    scales: Array
    biases: Array
    bits: int


def bits_of(info: TensorInfo) -> int | None:
    """Bits a value of a quantized tensor, None for a plain one."""
    return {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}.get(info.type)


def byte_length(info: TensorInfo) -> int:
    """Bytes of the tensor in the file. Raises ModelError if its rows are not whole blocks."""
    values = math.prod(info.shape)
    if info.type in _PLAIN:
        return values * _PLAIN[info.type].itemsize
    if info.shape[-1] % GROUP_SIZE:
        raise ModelError(
            f"tensor {info.name} is {info.type} with rows of {info.shape[-1]} values,"
            f" expected a multiple of {GROUP_SIZE}"
        )
    return values // GROUP_SIZE * _BLOCKS[info.type].itemsize


def read_plain(file: GgufFile, info: TensorInfo) -> Array:
    """An F32 or F16 tensor as it is."""
    raw = file.raw(info, byte_length(info))
    return raw.view(_PLAIN[info.type]).reshape(info.shape)


def read_float32(file: GgufFile, info: TensorInfo) -> Array:
    """The tensor's values as float32, exactly what its scales and codes give in that type."""
    if info.type in _PLAIN:
        return read_plain(file, info).astype(np.float32)
    blocks = _read_blocks(file, info)
    values = _codes(blocks, info.type).astype(np.float32)
    values *= blocks["d"].astype(np.float32)[..., None]
    values += _biases(blocks, info.type, np.float32)[..., None]
    return values.reshape(info.shape)


def read_quantized(file: GgufFile, info: TensorInfo) -> QuantizedTensor:
    """A quantized tensor in MLX's format, its codes and scales unchanged."""
    blocks = _read_blocks(file, info)
    codes = _codes(blocks, info.type)
    bits = bits_of(info) or 8
    if bits == 4:
        codes = codes[..., 0::2] | codes[..., 1::2] << 4
    rows = info.shape[:-1]
    return QuantizedTensor(
        packed=np.ascontiguousarray(codes).reshape(*rows, -1).view("<u4"),
        scales=np.ascontiguousarray(blocks["d"]),
        biases=_biases(blocks, info.type, np.float16),
        bits=bits,
    )


def _read_blocks(file: GgufFile, info: TensorInfo) -> Array:
    raw = file.raw(info, byte_length(info))
    return raw.view(_BLOCKS[info.type]).reshape(*info.shape[:-1], -1)


def _codes(blocks: Array, kind: str) -> Array:
    """Unsigned codes, 32 a block."""
    if kind == "Q8_0":
        return (blocks["q"].view(np.uint8) ^ 0x80).astype(np.uint8)
    # The low halves of a block's bytes are its first 16 values, the high halves the others.
    nibbles: Array = np.concatenate([blocks["q"] & 0x0F, blocks["q"] >> 4], axis=-1)
    return nibbles


def _biases(blocks: Array, kind: str, dtype: type[np.floating[Any]]) -> Array:
    if kind == "Q4_1":
        return blocks["m"].astype(dtype)
    centre = 8 if kind == "Q4_0" else 128
    return (blocks["d"].astype(np.float32) * -centre).astype(dtype)
