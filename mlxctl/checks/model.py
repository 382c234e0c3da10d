"""Whether the model can be loaded, and what computes it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from mlxctl.checks.scene import Finding, Scene
from mlxctl.modelfiles import broken_files


def check_model(scene: Scene) -> Iterator[Finding]:
    """Whether the model's files are whole."""
    model = (scene.status or {}).get("model")
    named = model["path"] if model else scene.settings.model
    if named is None:
        yield Finding("model", "note", "none is set", "mlxceld serve --model demo")
        return
    folder = Path(named)
    if not folder.is_dir():
        # A hub id, the demo or a file to import: known when it is loaded.
        return
    problems = list(broken_files(folder))
    if problems:
        yield Finding("model", "wrong", "; ".join(problems), "fetch or convert the model anew")
    else:
        yield Finding("model", "ok", f"{folder}: all files are whole")


def check_device(scene: Scene) -> Iterator[Finding]:
    """What computes, and with which matrix library."""
    model = (scene.status or {}).get("model")
    if model is not None:
        slow = sys.platform == "darwin" and "cpu" in model["device"].lower()
        yield Finding(
            "device",
            "slow" if slow else "ok",
            model["device"],
            "Metal was not found: run the daemon in a login session" if slow else "",
        )
    if sys.platform != "linux":
        return
    library = _openblas()
    if library is None:
        yield Finding(
            "matrix library",
            "slow",
            "no OpenBLAS: MLX's own on a CPU is some fifty times slower",
            "apt-get install libopenblas0-pthread, or pip install ngsolve-openblas",
        )
    else:
        yield Finding("matrix library", "ok", library)


def _openblas() -> str | None:
    """The OpenBLAS that the daemon would put in front of MLX."""
    import ctypes
    import importlib.metadata

    for name in ("libopenblas.so.0", "libopenblas.so"):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    for name in ("ngsolve-openblas", "cmeel-openblas"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
