"""Models with damaged weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import mlx.core as mx

DAMAGED_TOKEN = 200
"""A token whose embedding is not made of numbers."""


def damage_token(source: Path, folder: Path) -> Path:
    """Copy a model to ``folder``; what that computes from ``DAMAGED_TOKEN`` is no number."""
    shutil.copytree(source, folder)
    file = folder / "model.safetensors"
    weights = dict(mx.load(str(file)))
    name = "model.embed_tokens.weight"
    # The head is its own, so that this token's score is a number.
    assert "lm_head.weight" in weights
    rows = mx.arange(weights[name].shape[0])[:, None]
    weights[name] = mx.where(rows == DAMAGED_TOKEN, mx.array(float("nan")), weights[name])
    mx.eval(weights)
    mx.save_safetensors(str(file), weights, metadata={"format": "mlx"})
    return folder
