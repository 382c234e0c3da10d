"""Rows join, leave and fill a batch without disturbing each other."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import BatchKVCache

from engine_harness import CoreHarness, random_prompt
from mlxceld.engine.prefill import run_chunk
from mlxceld.kv import row_caches
from tiny_models import tiny_families


def _filled(module: Any, seed: int, length: int) -> row_caches.Caches:
    row = row_caches.new_row(module)
    run_chunk(module, row, [random_prompt(seed, length)])
    return row


def _next_logits(module: Any, row: row_caches.Caches) -> mx.array:
    logits = module(mx.array([[5]]), cache=row)[:, -1]
    mx.eval(logits)
    return logits


@pytest.mark.parametrize("family", tiny_families())
def test_extract_gives_the_row_back(tiny_model: Callable[..., Any], family: str) -> None:
    module = tiny_model(family).module
    lengths = (9, 70, 33)
    batch = row_caches.merge([_filled(module, i, n) for i, n in enumerate(lengths)])
    for i, length in enumerate(lengths):
        row = row_caches.extract(batch, i)
        want = _next_logits(module, _filled(module, i, length))
        assert mx.abs(_next_logits(module, row) - want).max().item() < 1e-4


@pytest.mark.parametrize("family", ["llama", "qwen3_next", "gpt_oss", "falcon_h1"])
def test_an_extracted_row_pins_nothing_of_the_batch(
    tiny_model: Callable[..., Any], family: str
) -> None:
    module = tiny_model(family).module
    _next_logits(module, row_caches.new_row(module))  # the model's own lazy constants exist
    before = mx.get_active_memory()
    batch = row_caches.merge([_filled(module, i, 40) for i in range(16)])
    mx.eval(row_caches.arrays(batch))
    row = row_caches.extract(batch, 3)
    mx.eval(row_caches.arrays(row))
    del batch
    # The row and nothing of the other seven; a copy that would save less than 16 KiB is not made.
    room = 16_384 * len(row_caches.arrays(row))
    assert mx.get_active_memory() - before <= row_caches.nbytes(row) + room


def test_an_empty_row_joins(tiny_model: Callable[..., Any]) -> None:
    module = tiny_model("qwen3_next").module
    batch = row_caches.merge([_filled(module, 1, 30)])
    row_caches.extend(batch, row_caches.merge([row_caches.new_row(module)]))
    logits = module(mx.array([[5], [5]]), cache=batch)[:, -1]
    for i, want in enumerate(
        (
            _next_logits(module, _filled(module, 1, 30)),
            _next_logits(module, row_caches.new_row(module)),
        )
    ):
        assert mx.abs(logits[i] - want[0]).max().item() < 1e-4


def test_trim_takes_the_newest_tokens(tiny_model: Callable[..., Any]) -> None:
    module = tiny_model("llama").module
    row = _filled(module, 1, 30)
    run_chunk(module, row, [[7, 8]])
    assert row_caches.can_trim(row)
    row_caches.trim(row, 2)
    want = _next_logits(module, _filled(module, 1, 30))
    assert mx.abs(_next_logits(module, row) - want).max().item() < 1e-4


def test_recurrent_rows_cannot_be_trimmed(tiny_model: Callable[..., Any]) -> None:
    assert not row_caches.can_trim(row_caches.new_row(tiny_model("mamba").module))


def test_what_can_be_merged(tiny_model: Callable[..., Any]) -> None:
    from mlx_lm.models.cache import CacheList, ChunkedKVCache, KVCache

    assert row_caches.can_merge(row_caches.new_row(tiny_model("falcon_h1").module))
    assert not row_caches.can_merge([KVCache(), ChunkedKVCache(8)])
    assert not row_caches.can_merge([CacheList(KVCache(), ChunkedKVCache(8))])


@pytest.mark.parametrize("family", tiny_families())
def test_one_offset_for_all_layers_changes_nothing(
    tiny_model: Callable[..., Any], family: str
) -> None:
    module = tiny_model(family).module
    answers = []
    for shared in (False, True):
        batch = row_caches.merge([_filled(module, i, n) for i, n in enumerate((9, 40))])
        for token in (5, 6):
            if shared:
                row_caches.share_offsets(batch)
            answers.append(module(mx.array([[token], [token + 1]]), cache=batch)[:, -1])
        offsets = [cache.offset for cache in batch if isinstance(cache, BatchKVCache)]
        # A cache that was written has moved on by itself.
        assert all(mx.array_equal(offset, offsets[0]).item() for offset in offsets)
        assert all(offset.tolist() == [11, 42] for offset in offsets)
    assert mx.array_equal(answers[0], answers[2]).item()
    assert mx.array_equal(answers[1], answers[3]).item()


def _waiting(arrays: list[mx.array]) -> int:
    """How many operations stand behind these arrays and have not been computed."""
    text = io.StringIO()
    mx.export_to_dot(text, *arrays)
    return text.getvalue().count("shape=rectangle")


@pytest.mark.parametrize("family", tiny_families())
async def test_no_lazy_graph_grows_with_the_steps_of_a_batch(
    tiny_model: Callable[..., Any], family: str
) -> None:
    harness = CoreHarness(tiny_model(family), max_batch_size=2)
    # Rows of equal length, merged while empty: recurrent caches keep an array of paddings then.
    for seed in range(2):
        harness.submit(random_prompt(seed, 20), max_tokens=60)
    waiting = []
    for _ in range(30):
        await harness.step()
        # Each step leaves the same few behind: what it added for the next one to start from.
        lanes = harness.core._batch._lanes
        waiting.append(sum(_waiting(row_caches.arrays(lane.caches)) for lane in lanes))
    assert lanes, "the batch has drained"
    assert waiting[10] == waiting[20] == waiting[29]
