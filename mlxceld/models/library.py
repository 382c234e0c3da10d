"""The models that imports have left in the state folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A model folder made by an import.

    ``source`` is the file that it was made from, which may be gone; ``bytes`` counts its files.
    """

    name: str
    path: Path
    source: str
    bytes: int


def list_models(state_dir: Path) -> list[ImportedModel]:
    """All imported models by name; what an import has not finished is left out."""
    found = []
    for marker in sorted((state_dir / "models").glob("*/import.json")):
        folder = marker.parent
        if folder.name.startswith("."):
            continue
        source = json.loads(marker.read_text()).get("source", "")
        size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
        found.append(ImportedModel(folder.name, folder, str(source), size))
    return found
