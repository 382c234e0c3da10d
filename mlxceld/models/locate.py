"""From what a user calls a model to a folder that can be loaded."""

from __future__ import annotations

import re
from pathlib import Path

from mlxceld.models.blas import gpu_backend
from mlxceld.models.errors import ModelError
from mlxceld.models.folder import ModelFolder, check_folder
from mlxceld.models.progress import Progress

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

WHAT_CAN_BE_GIVEN = (
    "a local MLX model folder, a .gguf file, a hub id such as mlx-community/Qwen3-4B-4bit,"
    " or demo (a small model to try things out)"
)


def resolve_model(name: str, *, state_dir: Path, progress: Progress) -> ModelFolder:
    """Find a model, downloading or importing it where needed, and check its folder.

    ``name`` is a folder, a .gguf file, a hub id or ``demo``; what exists on disk goes before the
    hub. ``progress`` is told a line of text at each stage. Imports no MLX. Raises ModelError with
    one readable line.
    """
    folder = _resolve(name.strip(), state_dir, progress)
    check_folder(folder.path)
    return folder


def import_model(path: Path, *, state_dir: Path, progress: Progress) -> ModelFolder:
    """Import a .gguf file for this machine's device, once; later calls find the folder.

    Its name is the file's without suffix. Raises ModelError if the file cannot be imported.
    """
    from mlxceld.models.gguf.importer import import_gguf

    if not path.is_file():
        raise ModelError(f"model {path}: no such file")
    quantized = gpu_backend() is not None
    folder = import_gguf(path.resolve(), state_dir, progress, quantized=quantized)
    return ModelFolder(folder, path.stem, f"imported from {path}")


def _resolve(name: str, state_dir: Path, progress: Progress) -> ModelFolder:
    if not name:
        raise ModelError(f"no model given; give {WHAT_CAN_BE_GIVEN}")
    if name == "demo":
        from mlxceld.models.demo import DEMO_ID, demo_file

        folder = import_model(
            demo_file(state_dir, progress), state_dir=state_dir, progress=progress
        )
        return ModelFolder(folder.path, DEMO_ID, "demo")
    path = Path(name).expanduser()
    if path.is_dir():
        path = path.resolve()
        return ModelFolder(path, path.name, "folder")
    if name.lower().endswith(".gguf"):
        return import_model(path, state_dir=state_dir, progress=progress)
    if path.exists():
        raise ModelError(f"model {name}: not a model file; give {WHAT_CAN_BE_GIVEN}")
    if _HUB_ID.fullmatch(name):
        from mlxceld.models.hub import hub_model

        return ModelFolder(hub_model(name, progress), name, "hub")
    raise ModelError(f"model {name}: not found; give {WHAT_CAN_BE_GIVEN}")
