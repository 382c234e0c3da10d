"""What is asked of one family: the engine's answers beside those of mlx-lm's own model run alone.

The model is tiny and random, the engine is the real one, driven step by step. Each answer is judged
by feeding its tokens to mlx-lm's model: every one has to be what that would have chosen, but for
two candidates closer than rounding, and of the same log-probability.
"""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from family_models import load_family
from mlx_lm import utils as mlx_lm_utils
from mlx_lm.models import activations, base
from mlx_lm.models.cache import make_prompt_cache

from engine_harness import CoreHarness, make_settings
from mlxceld.engine.checks import Checks
from mlxceld.engine.events import FailureKind
from mlxceld.engine.verify import obey
from mlxceld.models.errors import ModelError

VOCAB = 256
CHUNK = 2048
"""Prompt tokens that mlx-lm's own generation computes at once."""

TOLERANCE = 1e-4
"""How far log-probabilities may be from mlx-lm's; candidates ten times as close are a tie."""

ANSWER = 8
_OTHER_CUTS = (64, 33)
_NOISE_FACTOR = 4.0
_NEVER = -1e9
_UNEQUAL = (40, 2, 3, 17, 90)
_LONG = (420, 305)

_PATCHED = {
    "scaled_dot_product_attention": base.scaled_dot_product_attention,
    "swiglu": activations.swiglu,
}


@dataclass(frozen=True, slots=True)
class FamilyResult:
    """How a family fared. ``status`` is works, row by row, uncached, refused or wrong.

    ``reasons`` are those that the daemon gives; ``compared`` counts tokens beside mlx-lm's.
    """

    family: str
    status: str
    batching: str = ""
    reuse: str = ""
    sharing: str = ""
    compared: int = 0
    preempted: int = 0
    reasons: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For the file of results."""
        return asdict(self)


async def check_family(family: str, root: Path) -> FamilyResult:
    """Run one family through everything; ``root`` is an empty folder."""
    try:
        model = load_family(family, root)
    except ModelError as error:
        return FamilyResult(family, "refused", reasons=(str(error).split(": ", 1)[1],))
    theirs, _ = mlx_lm_utils.load_model(root / family)
    theirs.set_dtype(mx.float32)
    theirs.eval()
    settings = make_settings(root, kv_backend="paged")
    checks = Checks(model, settings)
    batch, report = checks.batch(), checks.reuse()

    def engine(**options: Any) -> CoreHarness:
        made = CoreHarness(model, cache=True, backend="paged", verdict=batch, **options)
        obey(report, model.status, made.reuse, made.cache)
        return made

    run = _Run(theirs, engine)
    wrong = [text async for text in run.everything()]
    reuse = engine().reuse
    sharing = reuse.reading.sharing
    reasons = [batch.reason, report.reason, sharing.reason if sharing is not None else ""]
    if run.noise:
        reasons.append(f"rounding moves mlx-lm's own log-probabilities by up to {run.noise:.2g}")
    status = "works" if batch.batched_decode else "row by row"
    if not report.passed:
        status = "uncached" if status == "works" else f"{status}, uncached"
    return FamilyResult(
        family,
        "wrong" if wrong else status,
        batch.mode,
        reuse.kind if report.passed else "none",
        sharing.mode if sharing is not None else "",
        run.compared,
        run.preempted,
        tuple(dict.fromkeys(reason for reason in reasons if reason)),
        tuple(wrong[:5]),
    )


class _Run:
    """Asks engines, and compares."""

    def __init__(self, theirs: Any, engine: Callable[..., CoreHarness]) -> None:
        self._theirs = theirs
        self._engine = engine
        self.compared = 0
        self.preempted = 0
        self.noise = 0.0

    async def everything(self) -> AsyncIterator[str]:
        """What went wrong, one text a request."""
        engine = self._engine(prefill_chunk=64)
        single = _tokens(1, 90)
        unequal = [_tokens(10 + i, length) for i, length in enumerate(_UNEQUAL)]
        shared = _tokens(30, 150)
        together = [[*shared, *_tokens(31 + i, 5 + 11 * i)] for i in range(3)]
        rounds = {
            "alone": [single],
            "the same again": [single],
            "a partial prefix": [[*single[:60], *_tokens(2, 20)]],
            "beside others": unequal,
            "the same beside others": [*unequal, single],
            "a common beginning": together,
            "a common beginning, stored": [[*p, *_tokens(40, 9)] for p in together],
        }
        for name, prompts in rounds.items():
            async for text in self._ask(engine, name, prompts):
                yield text
        long = [_tokens(50 + i, length) for i, length in enumerate(_LONG)]
        far = _tokens(60, 320)
        engine = self._engine(prefill_chunk=512)
        async for text in self._ask(engine, "long", long):
            yield text
        prompts = [[*far, *_tokens(61 + i, 20 + 9 * i)] for i in range(2)]
        prompts.append([*far, *_tokens(70, 100)])
        async for text in self._ask(engine, "long, a common beginning", prompts):
            yield text
        if bytes_each := engine.reuse.token_bytes:
            engine = self._engine(prefill_chunk=64, kv_bytes=bytes_each * 330)
            prompts = [_tokens(80 + i, 70) for i in range(3)]
            async for text in self._ask(engine, "preempted", prompts, answer=60):
                yield text
            self.preempted = engine.recorder.preemptions

    async def _ask(
        self, engine: CoreHarness, name: str, prompts: list[list[int]], answer: int = ANSWER
    ) -> AsyncIterator[str]:
        try:
            ids = [
                engine.submit(prompt, max_tokens=answer, ignore_eos=True, logprobs=0)
                for prompt in prompts
            ]
            await engine.run()
            engine.check()
        except Exception as error:
            yield f"{name}: the engine raised {type(error).__name__}: {error}"
            engine.core.fail_all(FailureKind.ENGINE, "another run has failed")
            await engine.collect()
            return
        for request_id, prompt in zip(ids, prompts, strict=True):
            result = engine.results[request_id]
            if result.reason is None:
                yield f"{name}, {len(prompt)} tokens: {result.end}"
            elif text := self._differs(prompt, result.tokens, result.logprobs):
                yield f"{name}, {len(prompt)} tokens: {text}"

    def _differs(self, prompt: list[int], tokens: list[int], logprobs: list[float]) -> str:
        """Where an answer is not mlx-lm's; empty if nowhere."""
        scores = self._scores(prompt, tokens)
        self.compared += len(tokens)
        said = _judged(scores, tokens, logprobs, TOLERANCE)
        if not said:
            return ""
        # Some families round their keys, so that the least difference becomes a step. What mlx-lm
        # itself is moved by, when it cuts the prompt in another way, is rounding.
        others = [self._scores(prompt, tokens, cut) for cut in _OTHER_CUTS]
        noise = max(float(mx.abs(scores - other).max().item()) for other in others)
        if noise > TOLERANCE and not _judged(scores, tokens, logprobs, _NOISE_FACTOR * noise):
            self.noise = max(self.noise, noise)
            return ""
        return f"{said} (another cut of the prompt moves mlx-lm's by {noise:.2g})"

    def _scores(self, prompt: list[int], tokens: list[int], chunk: int = CHUNK) -> mx.array:
        """mlx-lm's log-probabilities before each of an answer's tokens, ``[tokens, vocab]``."""
        with _unpatched(self._theirs):
            cache = make_prompt_cache(self._theirs)
            for start in range(0, len(prompt) - 1, chunk):
                part = prompt[start : min(start + chunk, len(prompt) - 1)]
                mx.eval(self._theirs(mx.array([part]), cache=cache))
            scores = []
            for fed in (prompt[-1], *tokens[:-1]):
                logits = self._theirs(mx.array([[fed]]), cache=cache)[0, -1].astype(mx.float32)
                logits = mx.maximum(logits, _NEVER)
                scores.append(logits - mx.logsumexp(logits))
                mx.eval(scores[-1])
            return mx.stack(scores)


def _judged(scores: mx.array, tokens: list[int], logprobs: list[float], tolerance: float) -> str:
    for at, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
        best, mine = float(scores[at].max().item()), float(scores[at, token].item())
        if best - mine > 10 * tolerance:
            return f"token {at} is {token}, {best - mine:.2g} below mlx-lm's"
        if abs(mine - logprob) > tolerance:
            return f"token {at} has a log-probability off by {abs(mine - logprob):.2g}"
    return ""


@contextmanager
def _unpatched(module: Any) -> Iterator[None]:
    """mlx-lm's own functions in the code of a model, in place of those for batches and CPUs."""
    before = []
    for name in {type(part).__module__ for part in module.modules()}:
        code = sys.modules.get(name)
        for function, theirs in _PATCHED.items():
            if code is not None and hasattr(code, function):
                before.append((code, function, getattr(code, function)))
                setattr(code, function, theirs)
    try:
        yield
    finally:
        for code, function, ours in before:
            setattr(code, function, ours)


def _tokens(seed: int, count: int) -> list[int]:
    rng = random.Random(1000 + seed)  # noqa: S311 - any fixed tokens do
    return [rng.randrange(VOCAB) for _ in range(count)]
