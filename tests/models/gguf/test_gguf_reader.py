from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from mlxceld.models.errors import ModelError
from mlxceld.models.gguf.reader import GgufFile
from tiny_gguf import encode, llama_metadata, write_gguf

VALUES = {
    "a.number": 7,
    "a.negative": -3,
    "a.float": 0.5,
    "a.flag": True,
    "a.text": "naïve 😀",
    "a.strings": ["x", "", "Ġy"],
    "a.numbers": np.array([1, -2, 3], np.int32),
}


def write_small(path: Path) -> Path:
    tensors = {
        "one": encode(np.arange(64).reshape(2, 32), "Q8_0"),
        "two": encode(np.arange(6).reshape(2, 3), "F32"),
    }
    return write_gguf(path, VALUES, tensors)


def read_first_tensor(path: Path) -> None:
    file = GgufFile(path)
    file.raw(file.tensors["one"], 68)


def test_reads_every_kind_of_value(tmp_path: Path) -> None:
    metadata = dict(GgufFile(write_small(tmp_path / "a.gguf")).metadata)
    assert metadata.pop("a.numbers").tolist() == [1, -2, 3]
    assert metadata == {key: value for key, value in VALUES.items() if key != "a.numbers"}


def test_tensors_have_rows_first_and_their_own_bytes(tmp_path: Path) -> None:
    file = GgufFile(write_small(tmp_path / "a.gguf"))
    info = file.tensors["two"]
    assert (info.type, info.shape) == ("F32", (2, 3))
    assert file.raw(info, 24).view("<f4").tolist() == [0, 1, 2, 3, 4, 5]


def test_every_cut_of_the_file_is_refused_or_noticed_at_the_tensor(tmp_path: Path) -> None:
    whole = write_small(tmp_path / "a.gguf").read_bytes()
    tensor_start = GgufFile(tmp_path / "a.gguf").tensors["one"].offset
    cut = tmp_path / "cut.gguf"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        if length < tensor_start - 31:
            with pytest.raises(ModelError, match=r"cut\.gguf"):
                GgufFile(cut)
        elif length < tensor_start + 68:
            with pytest.raises(ModelError, match="truncated"):
                read_first_tensor(cut)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"PK\x03\x04 and more", "not a GGUF file"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**62, 0), "truncated or damaged"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63), "truncated or damaged"),
        (b"GGUF" + struct.pack("<IQQQI", 3, 0, 1, 0, 99), "unknown value type 99"),
        (
            b"GGUF" + struct.pack("<IQQQIQQQQI", 3, 1, 0, 0, 3, 2**40, 2**40, 2**40, 0, 0),
            "has the shape",
        ),
    ],
)
def test_what_is_not_gguf_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        GgufFile(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        GgufFile(tmp_path / "none.gguf")


def test_flipped_header_bytes_never_raise_anything_else(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "a.gguf", llama_metadata(), {}).read_bytes()
    random = np.random.default_rng(3)
    path = tmp_path / "flipped.gguf"
    refused = 0
    for _ in range(200):
        flipped = bytearray(whole)
        for position in random.integers(4, 2000, 3):
            flipped[position] = random.integers(256)
        path.write_bytes(flipped)
        try:
            GgufFile(path)
        except ModelError:
            refused += 1
    assert refused > 0
