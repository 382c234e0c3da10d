"""Safetensors files written tensor by tensor, so that no model need fit in memory twice."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

_NAMES = {"float32": "F32", "float16": "F16", "uint32": "U32"}


class TensorSpec:
    """What a tensor will be: its NumPy type and shape."""

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        self.dtype = np.dtype(dtype)
        self.shape = shape
        self.nbytes = math.prod(shape) * self.dtype.itemsize


def file_size(specs: Mapping[str, TensorSpec]) -> int:
    """Bytes of the file that these tensors make."""
    return len(_header(specs)) + sum(spec.nbytes for spec in specs.values())


def write_safetensors(
    path: Path,
    specs: Mapping[str, TensorSpec],
    tensors: Iterable[tuple[str, np.ndarray[Any, np.dtype[Any]]]],
) -> None:
    """Write tensors, which must come in the order of ``specs``, and flush them to the disk."""
    with path.open("wb") as stream:
        stream.write(_header(specs))
        for (name, spec), (given, array) in zip(specs.items(), tensors, strict=True):
            if (given, array.dtype, array.shape) != (name, spec.dtype, spec.shape):
                raise ValueError(
                    f"expected {name} as {spec.dtype}{spec.shape},"
                    f" got {given} as {array.dtype}{array.shape}"
                )
            stream.write(np.ascontiguousarray(array).data)
        stream.flush()
        os.fsync(stream.fileno())


def _header(specs: Mapping[str, TensorSpec]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    offset = 0
    for name, spec in specs.items():
        entries[name] = {
            "dtype": _NAMES[spec.dtype.name],
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + spec.nbytes],
        }
        offset += spec.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
