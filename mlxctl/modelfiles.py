"""Whether the files of a model are whole, told without loading it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path


def broken_files(folder: Path) -> Iterator[str]:
    """What is missing or cut short in a model's folder."""
    for name in ("config.json", "tokenizer.json"):
        file = folder / name
        try:
            json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if name == "config.json":
                yield f"{file} is missing"
        except (OSError, ValueError) as error:
            yield f"{file}: {error}"
    wanted = {file.name for file in folder.glob("*.safetensors")}
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            wanted |= set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError) as error:
            yield f"{index}: {error}"
    if not wanted:
        yield f"{folder} has no *.safetensors"
    for name in sorted(wanted):
        problem = _safetensors_problem(folder / name)
        if problem:
            yield problem


def _safetensors_problem(file: Path) -> str:
    """Why a file of weights is not whole, by its own header; nothing if it is."""
    try:
        size = file.stat().st_size
        with file.open("rb") as source:
            length = int.from_bytes(source.read(8), "little")
            if size < 8 or length > size - 8:
                return f"{file}: cut short in its header"
            header = json.loads(source.read(length))
        ends = [v["data_offsets"][1] for k, v in header.items() if k != "__metadata__"]
    except FileNotFoundError:
        return f"{file} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{file}: {error}"
    whole = 8 + length + max(ends, default=0)
    if size != whole:
        return f"{file}: {size} bytes, and {whole} were expected"
    return ""
