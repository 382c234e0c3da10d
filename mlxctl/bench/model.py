"""The model to measure with, as a folder that every server can be given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mlxctl.errors import CtlError, ExitCode


def model_folder(name: str) -> str:
    """The folder of a model: its own, or the one into which mlxceld imports it.

    ``name`` is a folder, a .gguf file, a hub id or ``demo``. Raises CtlError with mlxceld's words.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path.resolve())
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "mlxceld", "models", "import", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    folder = done.stdout.strip()
    if done.returncode or not folder:
        raise CtlError(
            "model",
            f"--model {name}: cannot be made ready to serve",
            ExitCode.USAGE if done.returncode == ExitCode.USAGE else ExitCode.REFUSED,
            hint="give an MLX model folder, a .gguf file, a hub id, or demo",
        )
    return folder
