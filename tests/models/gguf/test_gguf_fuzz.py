"""A GGUF file that means harm is refused in a line: at once, and without taking memory."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxceld.models.errors import ModelError
from mlxceld.models.gguf.importer import import_gguf
from tiny_gguf import llama_metadata, llama_tensors, tiny_llama, write_gguf

MUTATIONS = 300
"""Of the bytes of the header, seeded."""

PEAK_BYTES = 64 * 2**20

READ = (
    *llama_metadata(),
    "general.alignment",
    "split.count",
    *(
        f"llama.{name}"
        for name in (
            *("expert_count", "attention.key_length", "attention.value_length"),
            *("attention.sliding_window", "rope.scaling.type", "rope.scaling.factor"),
            "rope.scale_linear",
        )
    ),
    *(
        f"tokenizer.ggml.{name}"
        for name in ("eot_token_id", "unknown_token_id", "add_bos_token", "add_eos_token")
    ),
)
"""Every field that the import reads."""

BAD: dict[str, Any] = {
    "not a number": float("nan"),
    "infinite": float("inf"),
    "negative": -1,
    "nothing": 0,
    "a half": 0.5,
    "2^32": 2**32,
    "2^62": 2**62,
    "a text": "x",
    "no text": "",
    "true": True,
    "numbers": np.array([1, 2, 3], np.int32),
    "fractions": np.array([np.nan, 1.5], np.float32),
    "texts": ["a", "b"],
    "no texts": [],
    "the same text twice": ["a", "a"],
}


@pytest.fixture(scope="module")
def tensors() -> dict[str, Any]:
    return llama_tensors(tiny_llama())


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """Memory, as Python and NumPy take it, stays small."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < PEAK_BYTES


@pytest.fixture
def told(tmp_path: Path) -> Callable[[Path], str | None]:
    """What the import says of a file; None if it takes it."""

    def tell(path: Path) -> str | None:
        try:
            import_gguf(path, tmp_path / "state", lambda _: None, quantized=False)
        except ModelError as error:
            text = str(error)
            assert text
            assert "\n" not in text
            assert len(text) < 1200
            return text
        return None

    return tell


@pytest.mark.parametrize("field", READ)
def test_every_field_with_every_kind_of_value(
    tmp_path: Path, tensors: dict[str, Any], told: Callable[[Path], str | None], field: str
) -> None:
    for number, value in enumerate(BAD.values()):
        metadata = {**llama_metadata(), field: value}
        told(write_gguf(tmp_path / f"{number}.gguf", metadata, tensors))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("llama.block_count", 2**32 - 1, "block_count is 4294967295"),
        ("llama.block_count", 2**40, "block_count is"),
        ("llama.block_count", float("nan"), "block_count is nan, expected a number"),
        ("llama.context_length", 0, "context_length is 0, expected a whole number"),
        ("llama.attention.layer_norm_rms_epsilon", float("nan"), "expected a number"),
        ("llama.rope.freq_base", float("inf"), "freq_base is inf, expected a number"),
        ("llama.rope.scaling.factor", "x", "scaling.factor is 'x', expected a number"),
        ("general.architecture", ["llama"], r"architecture \['llama'\] cannot be imported"),
        ("tokenizer.ggml.pre", ["smollm"], "pre-tokenizer"),
        ("tokenizer.ggml.token_type", ["a"], "token_type is"),
        ("tokenizer.ggml.token_type", np.array([1], np.int32), "1 token types for 320 tokens"),
        ("tokenizer.ggml.tokens", np.array([1], np.int32), "without tokens"),
        ("tokenizer.ggml.merges", ["a b c"], "is not a merge of two tokens"),
        ("tokenizer.ggml.eos_token_id", 1.5, "eos_token_id 1.5 is not in the vocabulary"),
        ("tokenizer.ggml.bos_token_id", True, "bos_token_id True is not in the vocabulary"),
        ("tokenizer.ggml.add_bos_token", "yes", "add_bos_token is 'yes', expected true or false"),
        ("tokenizer.chat_template", ["x"], "chat_template is no text"),
        ("general.alignment", 0, "alignment is 0"),
        ("general.alignment", 2**62, "alignment is"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path,
    tensors: dict[str, Any],
    told: Callable[[Path], str | None],
    field: str,
    value: Any,
    said: str,
) -> None:
    path = write_gguf(tmp_path / "bad.gguf", {**llama_metadata(), field: value}, tensors)
    text = told(path)
    assert text is not None
    assert text.startswith(str(path))
    with pytest.raises(ModelError, match=said):
        import_gguf(path, tmp_path, lambda _: None, quantized=False)


def test_mutated_bytes(
    tmp_path: Path, tensors: dict[str, Any], told: Callable[[Path], str | None]
) -> None:
    whole = write_gguf(tmp_path / "whole.gguf", llama_metadata(), tensors).read_bytes()
    header = len(whole) - sum(len(raw) + -len(raw) % 32 for _, _, raw in tensors.values())
    rng = random.Random(20260712)
    said = [
        told(_written(tmp_path, number, _mutated(whole, header, rng)))
        for number in range(MUTATIONS)
    ]
    # Most do harm, and a few hit what nobody reads.
    assert sum(text is not None for text in said) > MUTATIONS // 2


def _written(folder: Path, number: int, data: bytes) -> Path:
    path = folder / f"{number}.gguf"
    path.write_bytes(data)
    return path


def _mutated(whole: bytes, header: int, rng: random.Random) -> bytes:
    """The file with one thing wrong in its header, or cut short."""
    data = bytearray(whole)
    at = rng.randrange(4, header)
    if rng.random() < 0.5:
        # Where names, types and counts are, and not the long lists of tokens.
        at = rng.choice([rng.randrange(4, 700), rng.randrange(header - 1500, header)])
    kind = rng.randrange(6)
    if kind == 0:
        data[at] = rng.randrange(256)
    elif kind == 1:
        value = rng.choice([0, 1, 2**16, 2**31, 2**32 - 1, 2**33, 2**40, 2**63, 2**64 - 1])
        data[at : at + 8] = struct.pack("<Q", value)
    elif kind == 2:
        data[at : at + 4] = struct.pack("<I", rng.choice([0, 8, 9, 10, 12, 13, 2**32 - 1]))
    elif kind == 3:
        del data[at:]
    elif kind == 4:
        del data[at : at + rng.randrange(1, 9)]
    else:
        data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
    return bytes(data)


def _head(tensors: int, values: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, values)


def _text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


DEEP = struct.pack("<IQ", 9, 1)
ONE_VALUE = _head(0, 1) + _text(b"k")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (ONE_VALUE + struct.pack("<I", 9) + DEEP * 200_000, "nested deeper"),
        (ONE_VALUE + struct.pack("<IIQ", 9, 8, 2**60), "names 1152921504606846976 strings"),
        (ONE_VALUE + struct.pack("<IIQ", 9, 9, 2**60), "arrays"),
        (ONE_VALUE + struct.pack("<IIQ", 9, 0, 2**63), "needs more than"),
        (ONE_VALUE + struct.pack("<IQ", 8, 2**63), "needs more than"),
        (_head(2**63, 0), "names 9223372036854775808 tensors"),
        (_head(0, 2**63), "names 9223372036854775808 metadata values"),
        (
            _head(0, 2) + 2 * (_text(b"k\nk") + struct.pack("<IB", 0, 1)),
            "the metadata key 'k.nk' occurs twice",
        ),
        (
            _head(2, 0) + 2 * (_text(b"t") + struct.pack("<IQIQ", 1, 1, 0, 0)),
            "the tensor 't' occurs twice",
        ),
        (
            _head(1, 0) + _text(b"t") + struct.pack("<IQQQIQ", 3, 2**21, 2**21, 2**22, 0, 0),
            "has the shape",
        ),
    ],
    ids=[
        *("deep arrays", "many strings", "many arrays", "many bytes", "a long string"),
        *("many tensors", "many values", "a key twice", "a tensor twice", "a huge tensor"),
    ],
)
def test_counts_and_names_that_cannot_be(
    tmp_path: Path, told: Callable[[Path], str | None], data: bytes, said: str
) -> None:
    path = _written(tmp_path, 0, data)
    assert told(path) is not None
    with pytest.raises(ModelError, match=said):
        import_gguf(path, tmp_path, lambda _: None, quantized=False)


def test_an_offset_beyond_the_file(
    tmp_path: Path, tensors: dict[str, Any], told: Callable[[Path], str | None]
) -> None:
    path = write_gguf(tmp_path / "short.gguf", llama_metadata(), tensors)
    data = path.read_bytes()
    for offset in (2**62, 2**64 - 1):
        name = _text(b"output_norm.weight")
        at = data.index(name) + len(name) + 4 + 8 + 4
        changed = data[:at] + struct.pack("<Q", offset) + data[at + 8 :]
        text = told(_written(tmp_path, offset % 7, changed))
        assert text is not None
        assert "tensor output_norm.weight ends at byte" in text
