"""A model folder on disk, and what is wrong with one, found without loading it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxceld.models.errors import ModelError, one_line
from mlxceld.models.plausible import check_sizes

_SHARD = re.compile(r"(?P<stem>model.*)-(?P<number>\d{5})-of-(?P<total>\d{5})\.safetensors")

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "tiktoken.model",
    "vocab.json",
)

_MAX_HEADER_BYTES = 100 * 2**20


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder that mlx-lm can load.

    ``id`` is the model's public name; ``origin`` says in a few words where it came from.
    """

    path: Path
    id: str
    origin: str


def check_folder(path: Path) -> dict[str, Any]:
    """Return the folder's config, after making sure that nothing is missing or cut short.

    Raises ModelError that names the file and what is wrong with it.
    """
    if not path.exists():
        raise ModelError(f"model folder {path}: no such folder")
    if not path.is_dir():
        raise ModelError(f"model folder {path}: not a folder")
    config = _read_config(path)
    shapes: dict[str, list[int]] = {}
    for shard in _weight_files(path):
        shapes |= _check_safetensors(shard)
    check_sizes(path / "config.json", config, shapes)
    if not any((path / name).exists() for name in _TOKENIZER_FILES):
        raise ModelError(f"model folder {path}: no tokenizer (expected tokenizer.json)")
    return config


def _read_config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    try:
        config = json.loads(file.read_bytes())
    except FileNotFoundError:
        guess = next(path.glob("*.gguf"), None)
        hint = f"; to serve its GGUF file give {guess}" if guess else " (expected an MLX model)"
        raise ModelError(f"model folder {path}: no config.json{hint}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file}: cannot be read as JSON: {one_line(error)}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelError(f"{file}: no model_type; expected the config of a language model")
    return config


def _weight_files(path: Path) -> list[Path]:
    present = sorted(path.glob("model*.safetensors"))
    expected = _indexed_shards(path) | _numbered_shards(present)
    missing = sorted(expected - {file.name for file in present})
    if missing:
        raise ModelError(
            f"model folder {path}: {len(missing)} of {len(expected)} weight files missing,"
            f" first {missing[0]}; download the model again"
        )
    if not present:
        raise ModelError(f"model folder {path}: no weights (expected model*.safetensors)")
    return present


def _indexed_shards(path: Path) -> set[str]:
    """The shards that the index names, if there is one."""
    file = path / "model.safetensors.index.json"
    try:
        names = set(json.loads(file.read_bytes())["weight_map"].values())
    except FileNotFoundError:
        return set()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{file}: not an index of weight files: {one_line(error)}") from error
    # Indexes of converted models may still name the shards of another format.
    return {str(name) for name in names if str(name).startswith("model")}


def _numbered_shards(present: list[Path]) -> set[str]:
    """The names that the numbering of the present shards implies."""
    names = set()
    for file in present:
        if match := _SHARD.fullmatch(file.name):
            total = int(match["total"])
            names |= {
                f"{match['stem']}-{number:05d}-of-{total:05d}.safetensors"
                for number in range(1, total + 1)
            }
    return names


def _check_safetensors(file: Path) -> dict[str, list[int]]:
    """Make sure that the file is as long as its own header says; the shapes of its tensors."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
                raise ModelError(f"{file}: truncated or not a safetensors file ({size} bytes)")
            header = json.loads(stream.read(length))
        entries = {name: entry for name, entry in header.items() if name[:2] != "__"}
        ends = [int(entry["data_offsets"][1]) for entry in entries.values()]
        shapes = {name: [int(n) for n in entry["shape"]] for name, entry in entries.items()}
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {one_line(error)}") from error
    except (
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise ModelError(f"{file}: damaged header: {one_line(error)}") from error
    needed = 8 + length + max(ends, default=0)
    if size < needed:
        raise ModelError(f"{file}: truncated, {size} of {needed} bytes; download or copy it again")
    return shapes
