"""Computing prompt tokens into caches, one bounded chunk at a time.

Only the caches are evaluated, never the logits: the lazy graph then leaves out the output head.
A sequence's last prompt token is not prefilled; it is the first input of its decode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlxceld.kv import row_caches, shared_attention
from mlxceld.kv.row_caches import Caches
from mlxceld.kv.shared_prefix import order_by_table

if TYPE_CHECKING:
    from mlxceld.engine.row_reading import RowReading
    from mlxceld.engine.sequence import Sequence as Row


def group_caches(group: Sequence[Row], reading: RowReading) -> tuple[list[Row], Caches, bool]:
    """The caches for one forward pass over sequences, and the sequences in the caches' order.

    One sequence that reads nothing from the pool keeps its own row (the last item is False then);
    others are merged.
    """
    rows = list(group)
    if not any(sequence.block_table for sequence in rows):
        caches = [sequence.row for sequence in rows if sequence.row is not None]
        return rows, caches[0] if len(rows) == 1 else row_caches.merge(caches), len(rows) > 1
    order = order_by_table([sequence.block_table for sequence in rows])
    rows = [rows[at] for at in order]
    tails = [sequence.row for sequence in rows if sequence.row is not None]
    merged = shared_attention.merge(tails, [sequence.paged_tokens for sequence in rows])
    shared_attention.bind(merged, reading.prefix_of(rows), gathers=reading.gathers)
    return rows, merged, True


def run_chunk(module: Any, caches: Caches, chunks: Sequence[Sequence[int]]) -> None:
    """Run one forward pass over ``chunks[i]`` for row i, and evaluate the caches.

    Rows of unequal length are padded on the right, which needs the batched caches; equal rows and
    single ones are run as they are. At least one chunk has a token.

    Raises SharingError where the model cannot read what rows share; the caches are void then.
    """
    lengths = [len(chunk) for chunk in chunks]
    width = max(lengths)
    padded = min(lengths) < width
    tokens = mx.array([[*chunk, *([0] * (width - len(chunk)))] for chunk in chunks])
    if padded:
        row_caches.prepare(caches, lengths, width)
    row_caches.share_offsets(caches)
    if shared_attention.shares(caches):
        shared_attention.run(module, tokens, caches)
    else:
        module(tokens, cache=caches)
    if padded:
        row_caches.finalize(caches)
    mx.eval(row_caches.arrays(caches))
