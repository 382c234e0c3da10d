"""What a model's verdicts depend on, as one digest."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlxceld

if TYPE_CHECKING:
    from mlxceld.config import Settings
    from mlxceld.models.loading import LoadedModel

_ROOMS = ("engine", "kv", "models")
"""Our packages whose code makes or decides a verdict."""


def fingerprint(model: LoadedModel, settings: Settings) -> str:
    """A digest of the model's files, all code that runs it, the device and what is set for it.

    Files are told by path, inode, size and time of change, which a start has read in a millisecond;
    the configuration also by its content. Raises OSError where a file cannot be looked at.
    """
    folder = Path(model.status.path)
    parts: dict[str, Any] = {
        "files": _told(path for path in folder.rglob("*") if path.is_file()),
        "config": hashlib.sha256((folder / "config.json").read_bytes()).hexdigest(),
        "code": _told(_code(model.module)),
        "versions": {name: metadata.version(name) for name in ("mlx", "mlx-lm", "numpy")},
        "mlxceld": mlxceld.__version__,
        "device": [model.status.device, platform.platform(), model.status.dtype],
        "settings": {
            "kv_backend": settings.kv_backend,
            "block_size": settings.apc.block_size,
            "prompt_cache": settings.prompt_cache.enabled,
            "max_batch_size": settings.max_batch_size,
            "prefill_chunk": settings.prefill_chunk,
        },
        "caches": dict(model.status.layer_caches),
        "vocab_size": model.status.vocab_size,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _code(module: Any) -> Iterable[Path]:
    """The files of the model's own code, and of ours."""
    yield from {
        Path(file)
        for part in module.modules()
        if (file := getattr(sys.modules.get(type(part).__module__), "__file__", None))
    }
    root = Path(mlxceld.__file__).parent
    for room in _ROOMS:
        yield from (root / room).rglob("*.py")


def _told(paths: Iterable[Path]) -> list[list[Any]]:
    told = []
    for path in sorted(paths):
        about = path.stat()
        told.append([str(path), about.st_ino, about.st_size, about.st_mtime_ns])
    return told
