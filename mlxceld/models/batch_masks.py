"""Masks of a batch for gemma2, whose attention is its own.

It caps its scores softly, so it does not call the attention that all families share, and gives its
scores an axis for grouped heads: ``[rows, kv_heads, heads each, n, keys]``. A mask of one row has
two axes and fits; that of a batch, ``[rows, 1, n, keys]``, needs that axis too.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models import gemma2


class BatchMaskAttention(gemma2.Attention):  # type: ignore[misc]
    """mlx-lm's attention of gemma2, which takes a batch's mask."""

    def __call__(self, x: mx.array, mask: mx.array | None = None, cache: Any = None) -> mx.array:
        """As mlx-lm's; ``mask`` may be ``[rows, 1, n, keys]``."""
        if mask is not None and mask.ndim == 4 and self.repeats > 1:
            mask = mask[:, :, None]
        result: mx.array = super().__call__(x, mask, cache)
        return result


def install(module: Any) -> None:
    """Let a model's layers take a batch's mask; those of other families stay as they are."""
    for part in module.modules():
        if type(part) is gemma2.Attention:
            part.__class__ = BatchMaskAttention
