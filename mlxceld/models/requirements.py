"""What has to be installed before a model can be fetched or loaded. No MLX in here."""

from __future__ import annotations

import importlib.util
import sys

from mlxceld.models.errors import ModelError


def require_mlx() -> None:
    """Raise ModelError, with what to install, where MLX is missing.

    The wheel brings MLX on macOS only: elsewhere the extra decides between CPU and GPU.
    """
    try:
        found = importlib.util.find_spec("mlx.core") is not None
    except ModuleNotFoundError:
        found = False
    if found:
        return
    advice = (
        "install it: pip install mlx"
        if sys.platform == "darwin"
        else "install mlxceld with the extra for this machine: 'mlxceld[cpu]', or 'mlxceld[cuda]'"
        " with an NVIDIA GPU"
    )
    raise ModelError(f"MLX is not installed; {advice}")
