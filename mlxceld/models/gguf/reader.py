"""The header of a GGUF file: metadata and where each tensor lies."""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlxceld.models.errors import ModelError, one_line

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4

_TENSOR_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}

_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""Metadata value types of a fixed size, as NumPy writes them."""

_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: ``shape`` has the rows first; ``offset`` is in bytes from the file's start."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int


class GgufFile:
    """A GGUF file opened for reading; its bytes are mapped, not read."""

    def __init__(self, path: Path) -> None:
        """Read the header. Raises ModelError if it is not GGUF, damaged or cut short."""
        self.path = path
        try:
            with path.open("rb") as stream:
                self._data: bytes | mmap.mmap = mmap.mmap(
                    stream.fileno(), 0, access=mmap.ACCESS_READ
                )
        except OSError as error:
            raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise ModelError(f"{path}: the file is empty, expected a GGUF model") from error
        cursor = _Cursor(self._data, path)
        tensor_count, value_count = self._preamble(cursor)
        self.metadata: Mapping[str, Any] = {
            cursor.string(): cursor.value() for _ in range(value_count)
        }
        """Numbers, truth values and strings; arrays as lists of strings or NumPy arrays."""
        entries = [self._tensor_entry(cursor) for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise ModelError(f"{path}: general.alignment is {alignment!r}, expected a number")
        start = -(-cursor.position // alignment) * alignment
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(name, kind, shape, start + offset)
            for name, kind, shape, offset in entries
        }

    @property
    def size(self) -> int:
        """The file's length in bytes."""
        return len(self._data)

    def raw(self, info: TensorInfo, length: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The tensor's ``length`` bytes, uncopied. Raises ModelError if the file ends before."""
        if info.offset + length > self.size:
            raise ModelError(
                f"{self.path}: truncated, tensor {info.name} ends at byte"
                f" {info.offset + length} of {self.size}; download or copy the file again"
            )
        return np.frombuffer(self._data, np.uint8, length, info.offset)

    def _preamble(self, cursor: _Cursor) -> tuple[int, int]:
        """Check magic and version; the numbers of tensors and of metadata values."""
        if cursor.take(4) != _MAGIC:
            raise ModelError(f"{self.path}: not a GGUF file")
        version = int(cursor.scalar("<u4"))
        if version not in _VERSIONS:
            raise ModelError(
                f"{self.path}: GGUF version {version}; expected little-endian version 2 or 3"
            )
        return int(cursor.scalar("<u8")), int(cursor.scalar("<u8"))

    def _tensor_entry(self, cursor: _Cursor) -> tuple[str, str, tuple[int, ...], int]:
        name = cursor.string()
        dimensions = int(cursor.scalar("<u4"))
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise ModelError(f"{self.path}: damaged, tensor {name} has {dimensions} dimensions")
        # The file has the fastest dimension first.
        shape = tuple(int(cursor.scalar("<u8")) for _ in range(dimensions))[::-1]
        if math.prod(shape) <= 0 or math.prod(shape) > 64 * self.size:
            raise ModelError(f"{self.path}: damaged, tensor {name} has the shape {shape}")
        code = int(cursor.scalar("<u4"))
        kind = _TENSOR_TYPES.get(code, f"type {code}")
        return name, kind, shape, int(cursor.scalar("<u8"))


class _Cursor:
    """Reads values one after the other, never beyond the end."""

    def __init__(self, data: bytes | mmap.mmap, path: Path) -> None:
        self._data = data
        self._path = path
        self.position = 0

    def take(self, length: int) -> bytes:
        end = self.position + length
        if end > len(self._data):
            raise ModelError(
                f"{self._path}: truncated or damaged, the header needs more than the file's"
                f" {len(self._data)} bytes; download or copy the file again"
            )
        piece = self._data[self.position : end]
        self.position = end
        return piece

    def scalar(self, kind: str) -> Any:
        dtype = np.dtype(kind)
        return np.frombuffer(self.take(dtype.itemsize), dtype)[0].item()

    def string(self) -> str:
        (length,) = struct.unpack("<Q", self.take(8))
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelError(f"{self._path}: damaged header: {one_line(error)}") from error

    def value(self) -> Any:
        return self._value(int(self.scalar("<u4")))

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        return self.scalar(self._dtype(kind))

    def _array(self) -> Any:
        kind, count = int(self.scalar("<u4")), int(self.scalar("<u8"))
        if kind == _STRING:
            return [self.string() for _ in range(count)]
        if kind == _ARRAY:
            return [self._array() for _ in range(count)]
        dtype = np.dtype(self._dtype(kind))
        return np.frombuffer(self.take(dtype.itemsize * count), dtype)

    def _dtype(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise ModelError(f"{self._path}: damaged header, unknown value type {kind}")
        return _SCALARS[kind]
