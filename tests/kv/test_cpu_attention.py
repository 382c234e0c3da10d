"""Attention by powers of 2 is MLX's own, for every kind of mask that models give."""

from __future__ import annotations

import random

import mlx.core as mx
import pytest
from mlx_lm.models import base

from mlxceld.kv import cpu_attention, shared_attention

SCALE = 0.3


def _arrays(rows: int, count: int, tokens: int, *, heads: int = 6) -> tuple[mx.array, ...]:
    keys = [mx.random.key(seed) for seed in range(3)]
    return (
        mx.random.normal((rows, heads, count, 8), key=keys[0]),
        mx.random.normal((rows, 2, tokens, 8), key=keys[1]),
        mx.random.normal((rows, 2, tokens, 5), key=keys[2]),
    )


def _bool_mask(rows: int, count: int, tokens: int) -> mx.array:
    padding = mx.array([random.Random(row).randrange(tokens // 2) for row in range(rows)])
    return base.create_causal_mask(count, tokens - count, left_padding=padding)


@pytest.mark.parametrize(
    ("rows", "count", "tokens"),
    [(1, 300, 300), (1, 128, 500), (1, 1, 5000), (3, 1, 1700), (2, 70, 200), (1, 129, 130)],
)
@pytest.mark.parametrize("kind", ["none", "causal", "bool", "numbers", "numbers a head"])
def test_it_is_mlx_s_own(rows: int, count: int, tokens: int, kind: str) -> None:
    queries, keys, values = _arrays(rows, count, tokens)
    seen = _bool_mask(rows, count, tokens)
    mask = {
        "none": None,
        "causal": "causal",
        "bool": seen,
        "numbers": mx.where(seen, mx.array(0.25), mx.array(-1e9)),
        "numbers a head": mx.where(seen, mx.random.normal((rows, 6, count, tokens)), -1e9),
    }[kind]
    want = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=SCALE, mask=mask)
    got = cpu_attention.attend(queries, keys, values, SCALE, mask)
    assert got.shape == want.shape
    assert mx.allclose(got, want, atol=1e-5).item()


def test_a_window_is_a_mask_like_any_other() -> None:
    queries, keys, values = _arrays(1, 90, 200)
    mask = base.create_causal_mask(90, 110, window_size=32)[None, None]
    want = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=SCALE, mask=mask)
    got = cpu_attention.attend(queries, keys, values, SCALE, mask)
    assert mx.allclose(got, want, atol=1e-5).item()


def test_it_is_used_where_it_pays() -> None:
    queries, keys, _ = _arrays(1, 64, 64)
    pays = mx.default_device() == mx.cpu
    assert cpu_attention.pays(queries, keys, "causal") is pays
    assert not cpu_attention.pays(queries[:, :, :1], keys, None)
    assert not cpu_attention.pays(queries.astype(mx.float16), keys, "causal")
    assert not cpu_attention.pays(queries, keys, mx.ones((64, 64)))


def test_the_seam_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    whole = cpu_attention.attend
    monkeypatch.setattr(cpu_attention, "attend", lambda *a: used.append(1) or whole(*a))
    monkeypatch.setattr(cpu_attention, "pays", lambda *_: True)
    queries, keys, values = _arrays(1, 64, 64)
    got = shared_attention.attention(queries, keys, values, None, SCALE, "causal")
    want = base.scaled_dot_product_attention(
        queries, keys, values, cache=None, scale=SCALE, mask="causal"
    )
    assert used
    assert mx.allclose(got, want, atol=1e-5).item()
    sinks = mx.zeros(6)
    shared_attention.attention(queries, keys, values, None, SCALE, "causal", sinks=sinks)
    assert len(used) == 1
