from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ConcatenateKVCache,
    KVCache,
    make_prompt_cache,
)

from mlxceld.engine.prefill import run_chunk
from mlxceld.kv import snapshots
from mlxceld.models.caches.kinds import CacheKind
from mlxceld.models.sizing import LeafSize, StateSize, measure, module_of
from tiny_models import tiny_config, tiny_families

QWEN3_5_800M: dict[str, Any] = {
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text",
        "vocab_size": 248320,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "intermediate_size": 3584,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": True,
        "linear_num_value_heads": 16,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "type": "default"},
    },
}
"""Every fourth of 24 layers with full attention, the others with a recurrent state."""


class HalfState:
    """A model whose recurrent layers keep their state in 16 bits."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.layers = module.layers

    def make_cache(self) -> list[Any]:
        return list(self._module.make_cache())

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        logits: mx.array = self._module(tokens, cache=cache)
        for leaf in cache:
            if isinstance(leaf, ArraysCache):
                leaf.cache = [array.astype(mx.bfloat16) for array in leaf.cache]
        return logits


def leaves(caches: list[Any]) -> Iterator[Any]:
    for cache in caches:
        if isinstance(cache, CacheList):
            yield from leaves(list(cache.caches))
        else:
            yield cache


def captured_bytes(row: list[Any]) -> int:
    """Real bytes of what each cache holds of its tokens, the window's newest in order."""
    total = 0
    for leaf in leaves(row):
        if isinstance(leaf, ArraysCache):
            arrays = [array for array in leaf.cache if array is not None]
        else:
            window = getattr(leaf, "max_size", None)
            arrays = [leaf.keys, leaf.values]
            if window is not None:
                arrays = [leaf._temporal_order(array) for array in arrays]
            kept = min(leaf.offset, window or leaf.offset)
            first = arrays[0].shape[2] - kept if window is not None else 0
            arrays = [array[..., first : first + kept, :] for array in arrays]
        copies = [mx.array(array) for array in arrays]
        mx.eval(copies)
        total += sum(copy.nbytes for copy in copies)
    return total


def test_the_worked_example_comes_out_of_its_configuration_alone() -> None:
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    module = module_of(QWEN3_5_800M, mx.bfloat16)
    size = measure(module)
    assert mx.get_peak_memory() - before < 2**20, "weights were drawn"
    assert size.bytes_per_token == 6 * 2 * 2 * 256 * 2 == 12_288
    assert size.fixed_bytes == 18 * (16 * 128 * 128 * 4 + 3 * 6144 * 2) == 19_537_920
    half = measure(HalfState(module))
    assert half.bytes_per_token == 12_288
    assert half.fixed_bytes == 18 * (16 * 128 * 128 * 2 + 3 * 6144 * 2) == 10_100_736
    # What one step of 256 tokens of attention takes beside it.
    assert half.bytes_at(256) == 13_246_464
    assert not size.pageable
    assert size.describe() == "12,288 bytes a token, 19,537,920 bytes of fixed state"


@pytest.mark.parametrize("family", tiny_families())
def test_predicted_bytes_are_those_captured(family: str, tiny_model: Any) -> None:
    module = tiny_model(family).module
    size = measure(module)
    row = make_prompt_cache(module)
    tokens = 0
    for chunk in (1, 20, 9, 70):
        run_chunk(module, row, [[7] * chunk])
        tokens += chunk
        assert captured_bytes(row) == size.bytes_at(tokens)
        assert snapshots.capture(row, tokens).nbytes == size.snapshot_bytes_at(tokens)
    assert len(size.leaves) == len(list(leaves(row)))


@pytest.mark.parametrize("family", tiny_families())
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_configuration_tells_what_the_loaded_model_does(
    family: str, dtype: mx.Dtype, tiny_model: Any
) -> None:
    unread = measure(module_of(tiny_config(family), dtype))
    loaded = measure(tiny_model(family).module)
    if dtype == mx.float32:
        assert unread == loaded
    assert [leaf.kind for leaf in unread.leaves] == [leaf.kind for leaf in loaded.leaves]
    assert unread.bytes_per_token * (2 if dtype == mx.bfloat16 else 1) == loaded.bytes_per_token


class RoomyCache(KVCache):
    """A class that nobody knows, which makes room for 256 tokens at once."""


class OwnModel:
    """Two layers with caches of their own kinds beside a known one."""

    layers = (None, None, None)

    def make_cache(self) -> list[Any]:
        return [ConcatenateKVCache(), RoomyCache(), KVCache()]

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        count = tokens.shape[1]
        for leaf in cache:
            leaf.update_and_fetch(mx.zeros((1, 2, count, 8)), mx.zeros((1, 2, count, 4)))
        return mx.zeros((1, count, 3))


def test_a_cache_of_an_unknown_class_is_measured_by_what_tokens_add() -> None:
    size = measure(OwnModel())
    opaque = CacheKind.OPAQUE
    assert [leaf.kind for leaf in size.leaves] == [opaque, opaque, CacheKind.PAGEABLE]
    token = 2 * 12 * 4
    assert [leaf.token_bytes for leaf in size.leaves] == [token] * 3
    assert [leaf.bytes_at(10) for leaf in size.leaves] == [10 * token, 265 * token, 10 * token]


def test_windows_stop_growing() -> None:
    size = StateSize(
        (
            LeafSize(CacheKind.WINDOWED, 10, window=4),
            LeafSize(CacheKind.PAGEABLE, 3),
            LeafSize(CacheKind.RECURRENT, fixed_bytes=100),
        )
    )
    assert [size.bytes_at(n) for n in (1, 4, 9)] == [113, 152, 167]
    assert [size.snapshot_bytes_at(n) for n in (1, 9)] == [110, 140]
    assert (size.bytes_per_token, size.fixed_bytes, size.window_bytes) == (3, 100, 40)
    assert size.describe() == (
        "3 bytes a token, 100 bytes of fixed state, 40 bytes of windows (up to 4 tokens)"
    )
