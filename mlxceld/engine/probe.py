"""The batch probe: does this model give each row of a batch what it gives the row alone?

Batching pads. Some model code lets padding into a recurrent state, some cannot take a batch's
mask at all. So before anything is served, a few rows of unequal length go through the engine's
own chunks, once alone and once together, and their logits are compared.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlxceld.engine.prefill import run_chunk
from mlxceld.kv import row_caches
from mlxceld.kv.host import as_float
from mlxceld.kv.row_caches import Caches

log = logging.getLogger(__name__)

CHUNK = 32
"""Tokens a probe chunk; small, so that the probe is quick, and rows of several chunks are short."""

LENGTHS = (1, 18, 31, 110)
"""Prompt lengths: one token; within a chunk; not a multiple of 256; more than three chunks."""

STEPS = 3
"""Forced tokens that each row decodes after its prompt."""

_SEED = 20240229
_RELATIVE = 1e-4
_NOISE_FACTOR = 8.0


@dataclass(frozen=True, slots=True)
class BatchVerdict:
    """What the probe found a model to be fit for.

    ``padded_prefill``: prompts of unequal length may share a forward pass. ``batched_decode``:
    rows may decode in one batch. ``reason`` says what failed, and is empty if nothing did.
    """

    padded_prefill: bool
    batched_decode: bool
    reason: str = ""

    @property
    def mode(self) -> str:
        """One word for status and log: full, unpadded or rows."""
        if not self.batched_decode:
            return "rows"
        return "full" if self.padded_prefill else "unpadded"


def probe(module: Any, vocab_size: int) -> BatchVerdict:
    """Find the fullest way of batching that changes no row.

    Args:
        module: an mlx-lm model: ``module(tokens, cache=...)`` gives logits (rows, tokens, vocab).
        vocab_size: token ids below this are valid.
    """
    if not row_caches.can_merge(row_caches.new_row(module)):
        return BatchVerdict(False, False, "the model's caches have no batched form")
    rng = random.Random(_SEED)  # noqa: S311 - any fixed tokens do
    prompts = [[rng.randrange(vocab_size) for _ in range(length)] for length in LENGTHS]
    forced = [[rng.randrange(vocab_size) for _ in range(STEPS)] for _ in LENGTHS]
    singles = [alone(module, p, f) for p, f in zip(prompts, forced, strict=True)]
    longest = max(range(len(prompts)), key=lambda i: len(prompts[i]))
    again = alone(module, prompts[longest], forced[longest], chunk=CHUNK // 3)
    limit = tolerance(singles, noise=difference(singles[longest], again))
    reasons = []
    for padded in (True, False):
        name = "padded prefill" if padded else "batched decode"
        try:
            together = _together(module, prompts, forced, padded=padded)
        except Exception as error:
            reasons.append(f"{name} raised {type(error).__name__}: {str(error).splitlines()[:1]}")
            continue
        worst = max(difference(a, b) for a, b in zip(singles, together, strict=True))
        if worst <= limit:
            return BatchVerdict(padded, True, "; ".join(reasons))
        reasons.append(f"{name} moved a row's logits by {worst:.2g} (limit {limit:.2g})")
    return BatchVerdict(False, False, "; ".join(reasons))


def alone(module: Any, prompt: list[int], forced: list[int], *, chunk: int = CHUNK) -> mx.array:
    """Logits (steps + 1, vocab) of one row by itself."""
    row = row_caches.new_row(module)
    _prefill_alone(module, row, prompt, chunk)
    return decode(module, row, [prompt[-1]], [forced])[0]


def _together(
    module: Any, prompts: list[list[int]], forced: list[list[int]], *, padded: bool
) -> list[mx.array]:
    """The same of every row, computed as the engine would compute them together."""
    order = list(range(len(prompts)))
    short = [i for i in order if padded and 1 < len(prompts[i]) <= CHUNK]
    rest = [i for i in order if i not in short]
    batch: Caches | None = None
    joined: list[int] = []
    if short:
        rows = [row_caches.new_row(module) for _ in short]
        batch = row_caches.merge(rows)
        run_chunk(module, batch, [prompts[i][:-1] for i in short])
        joined += short
    for i in rest:
        row = row_caches.new_row(module)
        _prefill_alone(module, row, prompts[i], CHUNK)
        single = row_caches.merge([row])
        if batch is None:
            batch = single
        else:
            row_caches.extend(batch, single)
        joined.append(i)
    if batch is None:
        raise RuntimeError("no rows")
    logits = decode(module, batch, [prompts[i][-1] for i in joined], [forced[i] for i in joined])
    return [logits[joined.index(i)] for i in order]


def _prefill_alone(module: Any, row: Caches, prompt: list[int], chunk: int) -> None:
    for start in range(0, len(prompt) - 1, chunk):
        run_chunk(module, row, [prompt[start : min(start + chunk, len(prompt) - 1)]])


def decode(
    module: Any,
    caches: Caches,
    first: list[int],
    forced: Seq[Seq[int]],
    *,
    shuffle: bool = True,
) -> list[mx.array]:
    """Feed ``first`` and then each forced token; per row its logits (steps + 1, vocab).

    With ``shuffle`` the last row leaves after half of the steps and comes back, as rows do in a
    running batch.
    """
    inputs = [[token, *row] for token, row in zip(first, forced, strict=True)]
    seen: list[list[mx.array]] = [[] for _ in inputs]
    for at in range(STEPS + 1):
        if shuffle and len(inputs) > 1 and at == STEPS // 2:
            last = row_caches.merge([row_caches.extract(caches, len(inputs) - 1)])
            row_caches.keep_rows(caches, range(len(inputs) - 1))
            row_caches.extend(caches, last)
        step = mx.array([[row[at]] for row in inputs])
        logits = module(step, cache=caches)[:, -1, :].astype(mx.float32)
        mx.eval(logits)
        for i in range(len(inputs)):
            seen[i].append(logits[i])
    return [mx.stack(rows) for rows in seen]


def difference(a: mx.array, b: mx.array) -> float:
    """The largest gap between two arrays of logits; infinite where one is not a number."""
    gap = as_float(mx.abs(a - b).max())
    return math.inf if math.isnan(gap) else gap


def tolerance(singles: list[mx.array], *, noise: float) -> float:
    """What rounding may move: a small part of the logits' spread, or, in half precision, a few
    times what merely cutting the prompt into other chunks moves.
    """
    spread = max(as_float(row.max() - row.min()) for row in singles)
    return max(_RELATIVE * spread, _NOISE_FACTOR * noise)
