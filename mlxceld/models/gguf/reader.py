"""The header of a GGUF file: metadata and where each tensor lies."""

from __future__ import annotations

import math
import mmap
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mlxceld.models.errors import ModelError, one_line, shown

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_MAX_DEPTH = 4
_MAX_ALIGNMENT = 2**20

# The fewest bytes that one of each takes: what is counted higher than that is not there.
_SMALLEST_STRING = 8
_SMALLEST_ARRAY = 4 + 8
_SMALLEST_VALUE = _SMALLEST_STRING + 4
_SMALLEST_TENSOR = _SMALLEST_STRING + 4 + 8 + 4 + 8

T = TypeVar("T")

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
        cursor.expect(value_count, _SMALLEST_VALUE, "metadata values")
        values = [(cursor.string(), cursor.value()) for _ in range(value_count)]
        self.metadata: Mapping[str, Any] = self._unique("metadata key", values)
        """Numbers, truth values and strings; arrays as lists of strings or NumPy arrays."""
        cursor.expect(tensor_count, _SMALLEST_TENSOR, "tensors")
        entries = [self._tensor_entry(cursor) for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= _MAX_ALIGNMENT:
            raise ModelError(
                f"{path}: general.alignment is {shown(alignment)},"
                f" expected a number from 1 to {_MAX_ALIGNMENT}"
            )
        start = -(-cursor.position // alignment) * alignment
        infos = [
            (name, TensorInfo(name, kind, shape, start + offset))
            for name, kind, shape, offset in entries
        ]
        self.tensors: Mapping[str, TensorInfo] = self._unique("tensor", infos)

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

    def _unique(self, what: str, pairs: list[tuple[str, T]]) -> dict[str, T]:
        found = dict(pairs)
        if len(found) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            twice = next(name for name, count in counts.items() if count > 1)
            raise ModelError(f"{self.path}: damaged, the {what} {shown(twice)} occurs twice")
        return found

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
            raise ModelError(
                f"{self.path}: damaged, tensor {shown(name)} has {dimensions} dimensions"
            )
        # The file has the fastest dimension first.
        shape = tuple(int(cursor.scalar("<u8")) for _ in range(dimensions))[::-1]
        if math.prod(shape) <= 0 or math.prod(shape) > 64 * self.size:
            raise ModelError(f"{self.path}: damaged, tensor {shown(name)} has the shape {shape}")
        code = int(cursor.scalar("<u4"))
        kind = _TENSOR_TYPES.get(code, f"type {code}")
        return name, kind, shape, int(cursor.scalar("<u8"))


def number(file: GgufFile, key: str, default: float | None = None) -> float:
    """A finite number of the metadata; raises ModelError if it is none and has no default."""
    value = file.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ModelError(f"{file.path}: {key} is {shown(value)}, expected a number")
    return value


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

    def expect(self, count: int, size: int, what: str) -> None:
        """Refuse a count of things that the rest of the file has no room for."""
        if count * size > len(self._data) - self.position:
            raise ModelError(
                f"{self._path}: truncated or damaged, the header names {count} {what} and the file"
                f" has {len(self._data)} bytes; download or copy the file again"
            )

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

    def _array(self, depth: int = 1) -> Any:
        kind, count = int(self.scalar("<u4")), int(self.scalar("<u8"))
        if kind == _STRING:
            self.expect(count, _SMALLEST_STRING, "strings")
            return [self.string() for _ in range(count)]
        if kind == _ARRAY:
            if depth >= _MAX_DEPTH:
                raise ModelError(
                    f"{self._path}: damaged header, arrays nested deeper than {_MAX_DEPTH}"
                )
            self.expect(count, _SMALLEST_ARRAY, "arrays")
            return [self._array(depth + 1) for _ in range(count)]
        dtype = np.dtype(self._dtype(kind))
        return np.frombuffer(self.take(dtype.itemsize * count), dtype)

    def _dtype(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise ModelError(f"{self._path}: damaged header, unknown value type {kind}")
        return _SCALARS[kind]
