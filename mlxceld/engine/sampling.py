"""Choosing the next token of each row of a batch.

Greedy rows share one argmax over the batch. A sampled row draws by the Gumbel-max trick: argmax of
(log-probability / temperature + Gumbel noise), the noise keyed by the row's seed and the token's
index alone. So a seed gives the same text whatever else is in the batch, and rounding noise moves
the draw only at a near tie (Gumbel 1954; Maddison et al. 2014, "A* sampling").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import (
    apply_min_p,
    apply_top_k,
    apply_top_p,
    make_frequency_penalty,
    make_presence_penalty,
    make_repetition_penalty,
)

from mlxceld.engine.events import TokenLogprob
from mlxceld.engine.request import SamplingParams
from mlxceld.kv.host import as_float, as_floats, as_ints

if TYPE_CHECKING:
    from mlxceld.models.text import TextCodec

_WHOLE_HISTORY = 1 << 31

Processor = Callable[[mx.array, mx.array], mx.array]


class RowSampler:
    """The sampling parameters of one sequence, made ready for the vocabulary of the model."""

    def __init__(self, params: SamplingParams, seed: int, vocab_size: int) -> None:
        self._temperature = params.temperature
        self._seed = seed
        self._filters = _filters(params, vocab_size)
        self._on_all: list[Processor] = []
        self._on_generated: list[Processor] = []
        if params.repetition_penalty != 1.0:
            self._on_all.append(make_repetition_penalty(params.repetition_penalty, _WHOLE_HISTORY))
        if params.presence_penalty:
            self._on_generated.append(
                make_presence_penalty(params.presence_penalty, _WHOLE_HISTORY)
            )
        if params.frequency_penalty:
            self._on_generated.append(
                make_frequency_penalty(params.frequency_penalty, _WHOLE_HISTORY)
            )
        self._bias: tuple[mx.array, mx.array] | None = None
        if params.logit_bias:
            self._bias = (
                mx.array(list(params.logit_bias.keys())),
                mx.array(list(params.logit_bias.values()), dtype=mx.float32),
            )
        self.wants_history = bool(self._on_all or self._on_generated)
        self.is_argmax = params.temperature == 0 and not self.wants_history and self._bias is None

    def sample(
        self, logits: mx.array, prompt: Sequence[int], generated: mx.array, index: int
    ) -> mx.array:
        """The token of one row.

        Args:
            logits: float array of shape (1, vocab).
            prompt: the prompt's tokens.
            generated: int array of the tokens generated so far.
            index: how many tokens were generated before this one.

        Returns: int array of shape (1,).
        """
        logits = self._processed(logits.astype(mx.float32), prompt, generated)
        if self._temperature == 0:
            return mx.argmax(logits, axis=-1)
        logprobs = logits * (1.0 / self._temperature)
        logprobs = logprobs - mx.logsumexp(logprobs, axis=-1, keepdims=True)
        for keep in self._filters:
            logprobs = keep(logprobs)
        noise = mx.random.gumbel(logprobs.shape, key=_noise_key(self._seed, index))
        return mx.argmax(logprobs + noise, axis=-1)

    def _processed(self, logits: mx.array, prompt: Sequence[int], generated: mx.array) -> mx.array:
        if self._bias is not None:
            tokens, values = self._bias
            logits = logits.at[:, tokens].add(values)
        if self._on_all:
            history = mx.concatenate([mx.array(list(prompt), dtype=mx.int32), generated])
            for process in self._on_all:
                logits = process(history, logits)
        if generated.size:
            for process in self._on_generated:
                logits = process(generated, logits)
        return logits


def masked(logits: mx.array, mask: bytes) -> mx.array:
    """``logits``, of shape (1, vocab), with minus infinity where ``mask`` has a 0.

    Bit ``i`` of the mask, from the lowest of its first byte on, is token ``i``'s.
    """
    bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little")
    allowed = np.zeros(logits.shape[-1], dtype=np.bool_)
    known = min(len(bits), len(allowed))
    allowed[:known] = bits[:known]
    return mx.where(mx.array(allowed), logits, -mx.inf)


def _filters(params: SamplingParams, vocab_size: int) -> list[Callable[[mx.array], mx.array]]:
    filters: list[Callable[[mx.array], mx.array]] = []
    if 0 < params.top_k < vocab_size:
        filters.append(lambda logprobs: apply_top_k(logprobs, params.top_k))
    if params.top_p < 1.0:
        filters.append(lambda logprobs: apply_top_p(logprobs, params.top_p))
    if params.min_p > 0.0:
        filters.append(lambda logprobs: apply_min_p(logprobs, params.min_p, 1))
    return filters


def _noise_key(seed: int, index: int) -> mx.array:
    digest = blake2b(
        (seed & (2**64 - 1)).to_bytes(8, "little") + index.to_bytes(8, "little"), digest_size=8
    )
    key: mx.array = mx.random.key(int.from_bytes(digest.digest(), "little"))
    return key


@dataclass(frozen=True, slots=True)
class LogprobArrays:
    """Log-probabilities of one row, still to be evaluated.

    ``chosen`` has shape (1,); ``top_tokens`` and ``top_values`` shape (n,), in no order.
    """

    chosen: mx.array
    top_tokens: mx.array | None
    top_values: mx.array | None

    def arrays(self) -> list[mx.array]:
        """What there is to evaluate."""
        return [a for a in (self.chosen, self.top_tokens, self.top_values) if a is not None]


def logprobs_of(logits: mx.array, token: mx.array, top: int) -> LogprobArrays:
    """The log-softmax of one row's raw logits at the chosen token, and the ``top`` largest.

    Args:
        logits: float array of shape (1, vocab), before bias, penalties, temperature and filters.
        token: int array of shape (1,).
        top: how many alternatives, 0 for none.
    """
    row = logits[0].astype(mx.float32)
    row = row - mx.logsumexp(row)
    top = min(top, row.shape[0])
    if not top:
        return LogprobArrays(row[token], None, None)
    best = mx.argpartition(-row, kth=top - 1)[:top]
    return LogprobArrays(row[token], best, row[best])


def token_logprob(codec: TextCodec, token: int, arrays: LogprobArrays) -> TokenLogprob:
    """A token with its log-probability and its alternatives, the likeliest first; waits for them.

    Alternatives that are equally likely come in the order of their ids.
    """

    def entry(at: int, value: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        return TokenLogprob(at, codec.token_text(at), codec.token_bytes(at), value, top)

    top: tuple[TokenLogprob, ...] = ()
    if arrays.top_tokens is not None and arrays.top_values is not None:
        pairs = zip(as_floats(arrays.top_values), as_ints(arrays.top_tokens), strict=True)
        top = tuple(entry(at, value) for value, at in sorted(pairs, key=lambda p: (-p[0], p[1])))
    return entry(token, as_float(arrays.chosen), top)
