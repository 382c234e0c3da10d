"""How a row's next token is drawn."""

from __future__ import annotations

import math
from collections import Counter

import mlx.core as mx
import pytest

from mlxceld.engine.request import SamplingParams
from mlxceld.engine.sampling import RowSampler, logprobs_of
from mlxceld.kv.host import as_float, as_floats, as_ints

VOCAB = 16


def _draw(
    params: SamplingParams,
    logits: mx.array,
    *,
    seed: int = 7,
    index: int = 0,
    prompt: tuple[int, ...] = (),
    generated: tuple[int, ...] = (),
) -> int:
    sampler = RowSampler(params, seed, VOCAB)
    history = mx.array(generated, dtype=mx.int32)
    return as_ints(sampler.sample(logits[None], prompt, history, index))[0]


def _logits(**values: float) -> mx.array:
    row = [0.0] * VOCAB
    for name, value in values.items():
        row[int(name[1:])] = value
    return mx.array(row)


def test_temperature_zero_is_argmax() -> None:
    assert _draw(SamplingParams(temperature=0), _logits(t3=2.0, t9=1.0)) == 3


def test_a_seed_fixes_every_draw_and_indices_differ() -> None:
    logits, params = mx.zeros(VOCAB), SamplingParams(temperature=1.0)
    first = [_draw(params, logits, seed=5, index=i) for i in range(32)]
    assert first == [_draw(params, logits, seed=5, index=i) for i in range(32)]
    assert len(set(first)) > 4
    assert first != [_draw(params, logits, seed=6, index=i) for i in range(32)]


def test_draws_follow_the_distribution() -> None:
    logits = mx.array([math.log(8), math.log(4), math.log(2), math.log(2)] + [-1e9] * (VOCAB - 4))
    params = SamplingParams(temperature=1.0)
    seen = Counter(_draw(params, logits, index=i) for i in range(2000))
    assert set(seen) == {0, 1, 2, 3}
    for token, share in enumerate([0.5, 0.25, 0.125, 0.125]):
        # 2,000 draws under one fixed seed: five standard deviations.
        assert abs(seen[token] / 2000 - share) < 5 * math.sqrt(share * (1 - share) / 2000)


def test_rounding_noise_does_not_move_a_draw() -> None:
    logits = mx.random.normal((VOCAB,), key=mx.random.key(1))
    noisy = logits + 1e-6 * mx.random.normal((VOCAB,), key=mx.random.key(2))
    params = SamplingParams(temperature=0.9, top_p=0.95)
    for index in range(64):
        assert _draw(params, logits, index=index) == _draw(params, noisy, index=index)


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        (SamplingParams(top_k=2), {1, 2}),
        (SamplingParams(top_p=0.5), {1}),
        (SamplingParams(min_p=0.3), {1, 2}),
        (SamplingParams(top_k=VOCAB), set(range(VOCAB))),
        (SamplingParams(top_k=VOCAB + 5), set(range(VOCAB))),
    ],
)
def test_filters_bound_the_draw(params: SamplingParams, allowed: set[int]) -> None:
    logits = _logits(t1=5.0, t2=4.2)
    seen = {_draw(params, logits, index=i) for i in range(300)}
    assert seen <= allowed
    assert len(seen) > 1 or len(allowed) == 1


def test_temperature_is_applied_before_the_filters() -> None:
    logits = _logits(t1=5.0, t2=4.2)
    cold = SamplingParams(temperature=0.05, min_p=0.3)
    assert {_draw(cold, logits, index=i) for i in range(50)} == {1}


def test_bias_moves_and_bans() -> None:
    logits = _logits(t3=2.0)
    assert _draw(SamplingParams(temperature=0, logit_bias={9: 5.0}), logits) == 9
    assert _draw(SamplingParams(temperature=0, logit_bias={3: -100.0, 4: 1.0}), logits) == 4


def test_presence_and_frequency_count_generated_tokens_only() -> None:
    logits = _logits(t3=2.0, t4=1.5)
    presence = SamplingParams(temperature=0, presence_penalty=1.0)
    assert _draw(presence, logits, prompt=(3, 3)) == 3
    assert _draw(presence, logits, generated=(3, 3)) == 4
    frequency = SamplingParams(temperature=0, frequency_penalty=0.3)
    assert _draw(frequency, logits, generated=(3,)) == 3
    assert _draw(frequency, logits, generated=(3, 3)) == 4


def test_repetition_penalty_sees_the_prompt_however_long() -> None:
    logits = _logits(t3=2.0, t4=1.5)
    params = SamplingParams(temperature=0, repetition_penalty=2.0)
    assert _draw(params, logits) == 3
    assert _draw(params, logits, prompt=(3, *[7] * 500)) == 4
    assert _draw(params, logits, generated=(3,)) == 4


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = mx.random.normal((1, VOCAB), key=mx.random.key(3))
    expected = [
        v - math.log(sum(math.exp(x) for x in as_floats(logits[0]))) for v in as_floats(logits[0])
    ]
    found = logprobs_of(logits, mx.array([5]), 3)
    assert as_float(found.chosen) == pytest.approx(expected[5], abs=1e-5)
    assert found.top_tokens is not None
    assert found.top_values is not None
    best = sorted(range(VOCAB), key=lambda i: -expected[i])[:3]
    assert sorted(as_ints(found.top_tokens)) == sorted(best)
    for token, value in zip(as_ints(found.top_tokens), as_floats(found.top_values), strict=True):
        assert value == pytest.approx(expected[token], abs=1e-5)


def test_no_alternatives_and_more_than_there_are() -> None:
    logits = mx.zeros((1, VOCAB))
    assert logprobs_of(logits, mx.array([5]), 0).top_tokens is None
    every = logprobs_of(logits, mx.array([5]), 99).top_tokens
    assert every is not None
    assert sorted(as_ints(every)) == list(range(VOCAB))
