"""The batch probe: does this model give each row of a batch what it gives the row alone?

Batching pads. Some model code lets padding into a recurrent state, some cannot take a batch's
mask at all, some cuts attention by a token's place in the batch. So before anything is served, a
few rows of unequal length go through the engine's own chunks, once alone and once together, and
their logits are compared: as the model is, and with the lengths at which its attention changes
lowered so far that the rows pass them.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mlxceld.engine.prefill import run_chunk
from mlxceld.engine.thresholds import Threshold, longest, lowered, thresholds
from mlxceld.kv import row_caches
from mlxceld.kv.host import as_float
from mlxceld.kv.row_caches import Caches

log = logging.getLogger(__name__)

CHUNK = 32
"""Tokens a probe chunk; small, so that the probe is quick, and rows of several chunks are short."""

LENGTHS = (1, 2, 3, 4, 18, 18, 31, 110)
"""Prompt lengths: fewer tokens than a model may remember of a prompt's end; within a chunk, two of
them equal; not a multiple of 256; more than three chunks."""

STEPS = 3
"""Forced tokens that each row decodes after its prompt."""

_LONGEST_ROW = 1024
"""A length at which attention changes and that cannot be lowered is passed by rows up to this."""

_SEED = 20240229
_RELATIVE = 1e-4
_NOISE_FACTOR = 8.0

_CUTS_MATTER = {True: 0.25, False: 1e-4}
"""By half precision or not, the part of the logits' spread that another cut of a prompt moves by
no rounding."""


@dataclass(frozen=True, slots=True)
class BatchVerdict:
    """What the probe found a model to be fit for.

    ``padded_prefill``: prompts of unequal length may share a forward pass. ``batched_decode``:
    rows may decode in one batch. ``fixed_chunks``: the model's own code gives other logits when a
    prompt is cut into other chunks, so that chunks have to be mlx-lm's. ``reason`` says what
    failed, and is empty if nothing did.
    """

    padded_prefill: bool
    batched_decode: bool
    reason: str = ""
    fixed_chunks: bool = False

    @property
    def mode(self) -> str:
        """One word for status and log: full, unpadded or rows."""
        if not self.batched_decode:
            return "rows"
        return "full" if self.padded_prefill else "unpadded"

    def and_also(self, other: BatchVerdict) -> BatchVerdict:
        """What holds where both verdicts do."""
        return BatchVerdict(
            self.padded_prefill and other.padded_prefill,
            self.batched_decode and other.batched_decode,
            "; ".join(dict.fromkeys(v.reason for v in (self, other) if v.reason)),
            self.fixed_chunks or other.fixed_chunks,
        )


def probe(module: Any, vocab_size: int) -> BatchVerdict:
    """Find the fullest way of batching that changes no row.

    Args:
        module: an mlx-lm model: ``module(tokens, cache=...)`` gives logits (rows, tokens, vocab).
        vocab_size: token ids below this are valid.
    """
    found = thresholds(module)
    lengths = list(LENGTHS)
    if found and (most := longest(found)) > max(LENGTHS) and _is_deaf(module, vocab_size, found):
        # Whatever it is, it is read elsewhere, or not at all. The longest row has no padding.
        lengths += [most + 20, most + 57] if most <= _LONGEST_ROW else []
    verdict = _probe(module, vocab_size, lengths)
    if found and not verdict.fixed_chunks:
        with lowered(found):
            low = _probe(module, vocab_size, LENGTHS)
        if low.reason and low.reason != verdict.reason:
            low = replace(low, reason=f"past {longest(found)} tokens: {low.reason}")
        verdict = verdict.and_also(low)
    return verdict


def _is_deaf(module: Any, vocab_size: int, found: list[Threshold]) -> bool:
    """Whether lowering the lengths at which attention changes moves no logit."""
    ((prompt, forced),) = _rows(vocab_size, [max(LENGTHS)])
    plain = alone(module, prompt, forced)
    with lowered(found):
        low = alone(module, prompt, forced)
    return difference(plain, low) <= tolerance([plain], noise=0.0)


def _rows(vocab_size: int, lengths: Seq[int]) -> list[tuple[list[int], list[int]]]:
    """A prompt of each length, and what it is forced to go on with."""
    rng = random.Random(_SEED)  # noqa: S311 - any fixed tokens do
    prompts = [[rng.randrange(vocab_size) for _ in range(length)] for length in lengths]
    return [(p, [rng.randrange(vocab_size) for _ in range(STEPS)]) for p in prompts]


def _probe(module: Any, vocab_size: int, lengths: Seq[int]) -> BatchVerdict:
    """The verdict on prompts of these lengths."""
    rows = _rows(vocab_size, lengths)
    prompts, forced = [p for p, _ in rows], [f for _, f in rows]
    mergeable = row_caches.can_merge(row_caches.new_row(module))
    last = max(range(len(prompts)), key=lambda i: len(prompts[i]))
    if not mergeable:
        # One row tells whether cuts matter.
        prompts, forced, last = [prompts[last]], [forced[last]], 0
    singles = [alone(module, p, f) for p, f in zip(prompts, forced, strict=True)]
    if not all(_all_numbers(row) for row in singles):
        return BatchVerdict(False, False, "the model's logits are not numbers")
    again = alone(module, prompts[last], forced[last], chunk=CHUNK // 3)
    noise = difference(singles[last], again)
    if reason := cuts_matter(module, singles, noise):
        return BatchVerdict(False, False, reason, fixed_chunks=True)
    if not mergeable:
        return BatchVerdict(False, False, "the model's caches have no batched form")
    limit = tolerance(singles, noise=noise)
    reasons = []
    for padded in (True, False):
        name = "padded prefill" if padded else "batched decode"
        try:
            together = _together(module, prompts, forced, padded=padded)
        except Exception as error:
            reasons.append(f"{name} raised {type(error).__name__}: {first_line(error)}")
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
    lanes: list[tuple[Caches, list[int]]] = []

    def join(caches: Caches, rows: list[int]) -> None:
        """As rows join the engine's batch: one that does not fit has a lane of its own."""
        for lane, members in lanes:
            if row_caches.extend(lane, caches):
                members += rows
                return
        lanes.append((caches, rows))

    short = [i for i in order if 1 < len(prompts[i]) <= CHUNK]
    if not padded:
        sizes = [len(prompts[i]) for i in short]
        short = [i for i in short if sizes.count(len(prompts[i])) > 1]
    if short:
        batch = row_caches.merge([row_caches.new_row(module) for _ in short])
        run_chunk(module, batch, [prompts[i][:-1] for i in short])
        join(batch, short)
    for i in order:
        if i not in short:
            row = row_caches.new_row(module)
            _prefill_alone(module, row, prompts[i], CHUNK)
            join(row_caches.merge([row]), [i])
    logits: dict[int, mx.array] = {}
    for caches, rows in lanes:
        first, then = [prompts[i][-1] for i in rows], [forced[i] for i in rows]
        logits.update(zip(rows, decode(module, caches, first, then), strict=True))
    return [logits[i] for i in order]


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
            if not row_caches.extend(caches, last):
                raise ValueError("a row that has left a batch does not fit it any more")
        step = mx.array([[row[at]] for row in inputs])
        logits = module(step, cache=caches)[:, -1, :].astype(mx.float32)
        mx.eval(logits)
        for i in range(len(inputs)):
            seen[i].append(logits[i])
    return [mx.stack(rows) for rows in seen]


def first_line(error: Exception) -> str:
    """The first line of what an exception says."""
    return (str(error).splitlines() or [""])[0]


def difference(a: mx.array, b: mx.array) -> float:
    """The largest gap between two arrays of logits; infinite where one is not a number.

    Tokens that a model never gives, at minus infinity in both, are equal.
    """
    gap = as_float(mx.where(a == b, 0, mx.abs(a - b)).max())
    return math.inf if math.isnan(gap) else gap


def tolerance(singles: list[mx.array], *, noise: float) -> float:
    """What rounding may move: a small part of the logits' spread, or, in half precision, a few
    times what merely cutting the prompt into other chunks moves.
    """
    return max(_RELATIVE * _spread(singles), _NOISE_FACTOR * noise)


def cuts_matter(module: Any, singles: list[mx.array], noise: float) -> str:
    """Why a model's logits depend on how its prompt is cut into chunks; empty if they do not.

    ``noise`` is what another cut has moved them by. Then nothing can be told by comparing logits,
    and a prefix that was cut in another way is no prefix.
    """
    half = any(
        value.dtype in (mx.float16, mx.bfloat16) for _, value in tree_flatten(module.parameters())
    )
    most = _CUTS_MATTER[half] * _spread(singles)
    if noise <= most:
        return ""
    return f"cutting a prompt into other chunks moves its logits by {noise:.2g} (limit {most:.2g})"


def _all_numbers(logits: mx.array) -> bool:
    """Whether no logit is NaN; minus infinity stands for tokens that a model never gives."""
    return not bool(mx.any(mx.isnan(logits)).item())


def _spread(singles: list[mx.array]) -> float:
    finite = [mx.where(mx.isfinite(row), row, 0) for row in singles]
    return max(as_float(row.max() - row.min()) for row in finite)
