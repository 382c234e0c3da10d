"""The sharing probe: do rows that read shared blocks get what each of them gets alone?

How a model's attention treats keys, values and mask is its own code. So before anything is
served, rows that share a trunk, a branch of it, or nothing, go through one chunk and a few decode
steps, first with the blocks read where they lie, then, if that differs, with whole rows gathered.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlxceld.engine.prefill import run_chunk
from mlxceld.engine.probe import STEPS, alone, decode, difference, first_line, tolerance
from mlxceld.engine.thresholds import longest, lowered, thresholds
from mlxceld.kv import paged_rows, row_caches, shared_attention
from mlxceld.kv.pool import BlockPool
from mlxceld.kv.shared_prefix import SharedPrefix
from mlxceld.kv.slabs import LayerShape

log = logging.getLogger(__name__)

_SEED = 20240301
_TAILS = (4, 9, 6, 1, 11)
"""Tokens of each row's own; the first three share all blocks, the next the trunk, the last none."""


@dataclass(frozen=True, slots=True)
class SharingVerdict:
    """Whether rows of a batch may read shared blocks (``works``), and how.

    ``gathers``: only with whole rows. ``reason`` says what failed, and is empty if nothing did.
    """

    works: bool
    gathers: bool
    reason: str = ""

    def next_best(self, reason: str) -> SharingVerdict:
        """What to do where this way of reading has failed in service."""
        said = f"{self.reason}; {reason}" if self.reason else reason
        gathers = self.works and not self.gathers
        return SharingVerdict(gathers, gathers, said)

    @property
    def mode(self) -> str:
        """For log and status: read in place, gathered or copied."""
        if not self.works:
            return "copied into each row"
        return "gathered in each step" if self.gathers else "read in place"


def probe_sharing(
    module: Any, vocab_size: int, shapes: Seq[LayerShape], block_size: int
) -> SharingVerdict:
    """Find the best way of reading shared blocks that changes no row.

    ``module`` is an mlx-lm model with pageable caches only, whose attention is installed;
    ``shapes`` and ``block_size`` are its pool's.
    """
    ways = (False, True)
    verdict = _probe(module, vocab_size, shapes, block_size, ways)
    found = thresholds(module)
    if not (found and verdict.works):
        return verdict
    with lowered(found):
        low = _probe(module, vocab_size, shapes, block_size, ways[verdict.gathers :])
    if low.gathers and not verdict.gathers:
        verdict = _probe(module, vocab_size, shapes, block_size, ways[1:])
    reason = low.reason and f"past {longest(found)} tokens: {low.reason}"
    reasons = "; ".join(filter(None, (verdict.reason, reason)))
    return SharingVerdict(verdict.works and low.works, low.gathers, reasons)


def _probe(
    module: Any,
    vocab_size: int,
    shapes: Seq[LayerShape],
    block_size: int,
    ways: Seq[bool],
) -> SharingVerdict:
    """The first of ``ways``, by whether rows are gathered, that changes no row."""
    # Long blocks would make the probe long; what is read does not depend on their size.
    size = min(block_size, 16)
    rng = random.Random(_SEED)  # noqa: S311 - any fixed tokens do
    trunk, branch = ([rng.randrange(vocab_size) for _ in range(2 * size)] for _ in range(2))
    starts = [[*trunk, *branch]] * 3 + [trunk, []]
    prompts = [
        [*start, *(rng.randrange(vocab_size) for _ in range(tail))]
        for start, tail in zip(starts, _TAILS, strict=True)
    ]
    forced = [[rng.randrange(vocab_size) for _ in range(STEPS)] for _ in prompts]
    singles = [alone(module, p, f) for p, f in zip(prompts, forced, strict=True)]
    again = alone(module, prompts[0], forced[0], chunk=size)
    limit = tolerance(singles, noise=difference(singles[0], again))
    pool = BlockPool(shapes, size, 8 * size, max_bytes=1 << 40)
    row = row_caches.new_row(module)
    run_chunk(module, row, [starts[0]])
    blocks = pool.seal(paged_rows.keys_and_values(row), 0, len(starts[0])) or []
    tables = [blocks[: len(start) // size] for start in starts]
    reasons = []
    for gathers in ways:
        name = "gathering them" if gathers else "reading blocks in place"
        try:
            together = _together(module, pool, tables, prompts, forced, gathers=gathers)
        except Exception as error:
            reasons.append(f"{name} raised {type(error).__name__}: {first_line(error)}")
            continue
        worst = max(difference(a, b) for a, b in zip(singles, together, strict=True))
        if worst <= limit:
            return SharingVerdict(True, gathers, "; ".join(reasons))
        reasons.append(f"{name} moved a row's logits by {worst:.2g} (limit {limit:.2g})")
    return SharingVerdict(False, False, "; ".join(reasons))


def _together(
    module: Any,
    pool: BlockPool,
    tables: Seq[Seq[int]],
    prompts: Seq[list[int]],
    forced: Seq[list[int]],
    *,
    gathers: bool,
) -> list[mx.array]:
    """Per row its logits (steps + 1, vocab), computed with what the rows share read together."""
    before = [len(table) * pool.block_size for table in tables]
    caches = shared_attention.merge([row_caches.new_row(module) for _ in prompts], before)
    shared_attention.bind(caches, SharedPrefix(pool, tables), gathers=gathers)
    run_chunk(module, caches, [p[at:-1] for p, at in zip(prompts, before, strict=True)])
    return decode(module, caches, [p[-1] for p in prompts], forced, shuffle=False)
