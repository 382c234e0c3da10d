"""The self-check of reuse: does what is stored and adopted go on as if it had been computed?

For every kind of cache a state is taken out and put back. Then, live: a short prompt is computed,
kept, and resumed from twice, while the row that it was taken from goes on, alone and in a batch;
all of it is compared with cold runs. Nothing of the stores is touched.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlxceld.engine.prefill import run_chunk
from mlxceld.engine.probe import CHUNK, cuts_matter, difference, tolerance
from mlxceld.engine.thresholds import longest, lowered, thresholds
from mlxceld.kv import paged_rows, row_caches, snapshots
from mlxceld.kv.pool import BlockPool
from mlxceld.models.caches.registry import kind_of, leaves
from mlxceld.prompt_cache.reports import VerifyCheck, VerifyReport

if TYPE_CHECKING:
    from mlxceld.engine.prefix_cache import PrefixMemory
    from mlxceld.engine.probe import BatchVerdict
    from mlxceld.kv.row_caches import Caches
    from mlxceld.kv.slabs import KeysAndValues
    from mlxceld.prompt_cache.prompt_cache import PromptCache
    from mlxceld.telemetry.status import ModelStatus

log = logging.getLogger(__name__)

_SHORT = 27
"""Tokens of the prompt that is resumed from: not a multiple of a block."""

_PAST_LOWERED = 61
"""Tokens of the prompt that is longer than lowered windows and blocks."""

_LONGEST_WINDOW = 160
"""A window up to this long is filled and passed in a proof of its own."""

_SUFFIX = 21
_STEPS = 3
_SEED = 19780303

Row = tuple[list[int], list[int]]
"""What a row is given after the common prompt: tokens in chunks, then one by one."""


def verify(module: Any, vocab_size: int, verdict: BatchVerdict, block_size: int) -> VerifyReport:
    """Check every kind of cache and the live proofs; a proof that raises has failed.

    Args:
        module: an mlx-lm model: ``module(tokens, cache=...)`` gives logits (rows, tokens, vocab).
        vocab_size: token ids below this are valid.
        verdict: how the engine will batch this model; only that is proved.
        block_size: tokens of a block that pageable layers are kept in.
    """
    proof = _Proof(module, vocab_size, verdict, block_size)
    row = row_caches.new_row(module)
    if obstacle := snapshots.unsupported_reason(row):
        return VerifyReport((VerifyCheck("caches", "opaque", False, obstacle),))
    checks = list(proof.kinds())
    cases = [("a short prompt", _SHORT)]
    windows = {leaf.max_size for leaf in leaves(row) if hasattr(leaf, "max_size")}
    cases += [
        (f"a prompt longer than the window of {window}", window + 13)
        for window in sorted(windows)
        if window <= _LONGEST_WINDOW
    ]
    for name, length in cases:
        checks.append(_attempt(name, "live", partial(proof.live, length)))
    if found := thresholds(module):
        with lowered(found):
            name = f"a prompt longer than all that a token sees, lowered from {longest(found)}"
            checks.append(_attempt(name, "live", partial(proof.live, _PAST_LOWERED)))
    return VerifyReport(tuple(checks), proof.tokens_computed)


def obey(
    report: VerifyReport, status: ModelStatus, reuse: PrefixMemory, cache: PromptCache
) -> ModelStatus:
    """What is told of a model after its self-check; the outcome is logged.

    If it failed, nothing is stored or adopted any more: slower, never wrong. Memory is given back
    by the caller.
    """
    if report.passed:
        log.info("prompt cache: verified, %d checks passed", len(report.checks))
    else:
        log.warning("prompt cache: prompts are served uncached: %s", report.reason)
        cache.switch_off()
    mx.clear_cache()
    kind = reuse.kind if report.passed else "none"
    return replace(status, reuse=kind, reuse_reason=report.reason)


class _Proof:
    """Runs rows of fixed random tokens, cold and resumed, and compares their logits."""

    def __init__(
        self, module: Any, vocab_size: int, verdict: BatchVerdict, block_size: int
    ) -> None:
        self._module = module
        self._vocab = vocab_size
        self._verdict = verdict
        self._block_size = block_size
        self.tokens_computed = 0

    def kinds(self) -> list[VerifyCheck]:
        """One check for each kind of cache: what is put back is what was taken, to the bit."""
        row = self._prefilled(_tokens(_SHORT, self._vocab, 0))
        names = [kind_of(leaf).value for leaf in leaves(row)]
        wrong: Counter[str] = Counter()
        fault = ""
        try:
            copies = self._kept(row, _SHORT)()
            for name, mine, other in zip(names, leaves(row), leaves(copies), strict=True):
                wrong[name] += not _same_state(mine, other, _SHORT)
        except Exception as error:
            fault = _told(error)
        checks = []
        for name, count in Counter(names).items():
            passed = not fault and not wrong[name]
            detail = fault or f"{count - wrong[name]} of {count} caches come back to the bit"
            checks.append(VerifyCheck(f"{name} caches", name, passed, detail))
        return checks

    def live(self, length: int) -> tuple[bool, str]:
        """Whether resuming after ``length`` tokens changes nothing, and by how much it would."""
        prompt = _tokens(length, self._vocab, 1)
        donor: Row = ([], _tokens(2 * _STEPS, self._vocab, 2))
        adopters: list[Row] = [
            (_tokens(_SUFFIX - 9 * i, self._vocab, 3 + i), _tokens(_STEPS, self._vocab, 5 + i))
            for i in range(2)
        ]
        cold = [self._cold(prompt, row) for row in (donor, *adopters)]
        again = self._cold(prompt, adopters[0], chunk=CHUNK // 3)
        noise = difference(cold[1], again)
        if reason := cuts_matter(self._module, cold, noise):
            return False, reason
        limit = tolerance(cold, noise=noise)
        row = self._prefilled(prompt)
        resume = self._kept(row, length)
        kept, resumed = self._in_turn(row, donor, resume, adopters[0])
        seen = {
            "the row that it was taken from": difference(cold[0], kept),
            "a row that resumes": difference(cold[1], resumed),
        }
        if self._verdict.batched_decode:
            together = self._together(resume, adopters)
            gaps = [difference(a, b) for a, b in zip(cold[1:], together, strict=True)]
            seen["a row in a batch"] = max(gaps)
        bad = [f"{name} differs by {gap:.2g}" for name, gap in seen.items() if gap > limit]
        if bad:
            return False, f"{'; '.join(bad)} (limit {limit:.2g})"
        worst = max(seen.values())
        return True, f"resumed after {length} tokens: off by {worst:.2g} at most, limit {limit:.2g}"

    def _in_turn(
        self, row: Caches, donor: Row, resume: Callable[[], Caches], adopter: Row
    ) -> tuple[mx.array, mx.array]:
        """The logits of the row that was kept and of one that resumes, step by step in turn."""
        other = resume()
        suffix, steps = adopter
        self._chunks(other, suffix)
        mine, theirs = [], []
        for at, token in enumerate(donor[1]):
            mine.append(self._step(row, [token])[0])
            if at < len(steps):
                theirs.append(self._step(other, [steps[at]])[0])
        return mx.stack(mine), mx.stack(theirs)

    def _together(self, resume: Callable[[], Caches], adopters: Sequence[Row]) -> list[mx.array]:
        """The logits of rows that resume and run in one batch, as the engine would run them."""
        rows = [resume() for _ in adopters]
        if self._verdict.padded_prefill:
            batch = row_caches.merge(rows)
            # Two chunks, so that lengths have to be those inside each.
            cut = [len(suffix) * 2 // 3 for suffix, _ in adopters]
            first = [suffix[:at] for (suffix, _), at in zip(adopters, cut, strict=True)]
            rest = [suffix[at:] for (suffix, _), at in zip(adopters, cut, strict=True)]
            for parts in (first, rest):
                run_chunk(self._module, batch, parts)
                self.tokens_computed += sum(len(part) for part in parts)
        else:
            for row, (suffix, _) in zip(rows, adopters, strict=True):
                self._chunks(row, suffix)
            batch = row_caches.merge(rows)
        logits = [self._step(batch, [steps[at] for _, steps in adopters]) for at in range(_STEPS)]
        return [mx.stack([step[i] for step in logits]) for i in range(len(adopters))]

    def _cold(self, prompt: list[int], row: Row, *, chunk: int = CHUNK) -> mx.array:
        """Logits (steps, vocab) of one row that is computed from its first token on."""
        caches = row_caches.new_row(self._module)
        self._chunks(caches, [*prompt, *row[0]], chunk)
        return mx.stack([self._step(caches, [token])[0] for token in row[1]])

    def _prefilled(self, prompt: list[int]) -> Caches:
        """A row that holds a prompt, its last tokens written one by one, as an answer's are."""
        caches = row_caches.new_row(self._module)
        self._chunks(caches, prompt[:-2])
        for token in prompt[-2:]:
            self._step(caches, [token])
        return caches

    def _chunks(self, caches: Caches, tokens: list[int], size: int = CHUNK) -> None:
        for start in range(0, len(tokens), size):
            run_chunk(self._module, caches, [tokens[start : start + size]])
        self.tokens_computed += len(tokens)

    def _step(self, caches: Caches, tokens: list[int]) -> mx.array:
        """Feed each row one token; logits (rows, vocab)."""
        whole: mx.array = self._module(mx.array([[token] for token in tokens]), cache=caches)
        logits = whole[:, -1, :].astype(mx.float32)
        mx.eval(logits, row_caches.arrays(caches))
        self.tokens_computed += len(tokens)
        return logits

    def _kept(self, row: Caches, tokens: int) -> Callable[[], Caches]:
        """Keep a row's state as the stores do, in blocks of its own; gives rows that resume."""
        state = snapshots.capture(row, tokens)
        pageable = list(snapshots.pageable(row))
        if not pageable:
            return lambda: snapshots.restore(self._module, state, [])
        shapes = paged_rows.layer_shapes(pageable)
        blocks_for = -(-tokens // self._block_size)
        room = blocks_for * self._block_size * sum(shape.token_bytes for shape in shapes)
        size = self._block_size
        pool = BlockPool(shapes, size, max(size, blocks_for * size), max_bytes=room)
        table = pool.seal(paged_rows.keys_and_values(pageable), 0, tokens)
        if table is None:
            raise RuntimeError(f"{blocks_for} blocks do not fit a pool of {room} bytes")

        def resume() -> Caches:
            layers: list[KeysAndValues] = pool.read(table, tokens)
            mx.eval(layers)
            return snapshots.restore(self._module, state, layers)

        return resume


def _attempt(name: str, kind: str, check: Callable[[], tuple[bool, str]]) -> VerifyCheck:
    try:
        passed, detail = check()
    except Exception as error:
        log.debug("%s: the check failed", name, exc_info=True)
        passed, detail = False, _told(error)
    return VerifyCheck(name, kind, passed, detail)


def _told(error: Exception) -> str:
    lines = str(error).splitlines() or [""]
    return f"raised {type(error).__name__}: {lines[0]}"


def _same_state(mine: Any, other: Any, tokens: int) -> bool:
    """Whether two caches hold the same of ``tokens`` tokens, to the bit."""
    pairs = zip(_contents(mine, tokens), _contents(other, tokens), strict=True)
    return all(
        (a is None and b is None)
        or (a is not None and b is not None and a.shape == b.shape and _equal(a, b))
        for a, b in pairs
    )


def _contents(leaf: Any, tokens: int) -> list[mx.array | None]:
    state = snapshots.capture([leaf], tokens)
    if state.layers != (None,):
        return list(state.arrays())
    return [leaf.keys[:, :, :tokens], leaf.values[:, :, :tokens]]


def _equal(a: mx.array, b: mx.array) -> bool:
    return bool(mx.array_equal(a, b).item())


def _tokens(count: int, vocab: int, salt: int) -> list[int]:
    rng = random.Random(_SEED + salt)  # noqa: S311 - any fixed tokens do
    return [rng.randrange(vocab) for _ in range(count)]
