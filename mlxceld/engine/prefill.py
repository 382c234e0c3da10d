"""Computing prompt tokens into caches, one bounded chunk at a time.

Only the caches are evaluated, never the logits: the lazy graph then leaves out the output head.
A sequence's last prompt token is not prefilled; it is the first input of its decode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mlxceld.kv import row_caches
from mlxceld.kv.row_caches import Caches


def run_chunk(module: Any, caches: Caches, chunks: Sequence[Sequence[int]]) -> None:
    """Run one forward pass over ``chunks[i]`` for row i, and evaluate the caches.

    Rows of unequal length are padded on the right, which needs the batched caches; equal rows and
    single ones are run as they are. At least one chunk has a token.
    """
    lengths = [len(chunk) for chunk in chunks]
    width = max(lengths)
    padded = min(lengths) < width
    tokens = mx.array([[*chunk, *([0] * (width - len(chunk)))] for chunk in chunks])
    if padded:
        row_caches.prepare(caches, lengths, width)
    module(tokens, cache=caches)
    if padded:
        row_caches.finalize(caches)
    mx.eval(row_caches.arrays(caches))
