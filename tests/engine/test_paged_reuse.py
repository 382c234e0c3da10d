"""Reuse through the block pool: stored once, adopted to the token, never changed by a match."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import pytest

from engine_harness import CoreHarness, Result, random_prompt
from mlxceld.engine.paged_reuse import PagedReuse
from mlxceld.kv import paged_rows
from mlxceld.kv.blocks import BlockError
from mlxceld.kv.pool import BlockPool

Make = Callable[..., CoreHarness]

PAGEABLE = ["llama", "qwen3", "deepseek_v3"]
BLOCK = 16


def _cached(harness: CoreHarness, request_id: str) -> int:
    end = harness.results[request_id].end
    assert end is not None
    return end.usage.cached_tokens


def _same(got: Result, want: Result) -> None:
    assert got.tokens == want.tokens
    assert got.logprobs == pytest.approx(want.logprobs, abs=1e-4)


async def _run_and_check(harness: CoreHarness, prompt: list[int]) -> None:
    await harness.alone(prompt, max_tokens=8, ignore_eos=True)
    harness.check()


def _pool(harness: CoreHarness) -> BlockPool:
    assert isinstance(harness.reuse, PagedReuse)
    return harness.reuse._pool


@pytest.mark.parametrize("family", PAGEABLE)
async def test_a_partial_match_at_every_offset_of_a_block(core: Make, family: str) -> None:
    stored = random_prompt(1, 70)
    warm, cold = core(family, cache=True, backend="paged"), core(family)
    await warm.alone(stored, max_tokens=4, ignore_eos=True)
    depth = [len(entry.tokens) for entry in warm.store.entries()]
    for offset in range(BLOCK + 1):
        shared = 32 + offset
        prompt = [*stored[:shared], (stored[shared] + 1) % 256, *random_prompt(2, 9)]
        request_id = warm.submit(prompt, max_tokens=5, ignore_eos=True, logprobs=0)
        await warm.run()
        assert _cached(warm, request_id) == shared
        want = await cold.alone(prompt, max_tokens=5, ignore_eos=True, logprobs=0)
        _same(warm.results[request_id], want)
        warm.check()
    # What matched in part is as deep as before, and the whole of it can still be adopted.
    assert [len(entry.tokens) for entry in warm.store.entries() if entry.hits][:1] == depth
    request_id = warm.submit([*stored, 9], max_tokens=2, ignore_eos=True)
    await warm.run()
    assert _cached(warm, request_id) == len(stored)


@pytest.mark.parametrize("family", PAGEABLE)
async def test_an_exact_repeat_computes_one_token(core: Make, family: str) -> None:
    prompt = random_prompt(1, 50)
    warm, cold = core(family, cache=True, backend="paged"), core(family)
    want = await cold.alone(prompt, max_tokens=6, ignore_eos=True, logprobs=0)
    for expected in (0, 49, 49):
        request_id = warm.submit(prompt, max_tokens=6, ignore_eos=True, logprobs=0)
        await warm.run()
        assert _cached(warm, request_id) == expected
        _same(warm.results[request_id], want)
    assert len(warm.store) == 1
    assert warm.store.counters.replaced == 2
    warm.check()


@pytest.mark.parametrize("family", PAGEABLE)
async def test_sharers_at_once_and_one_cancelled(core: Make, family: str) -> None:
    prefix = random_prompt(1, 200)
    warm, cold = core(family, cache=True, backend="paged"), core(family)
    await warm.alone(prefix, max_tokens=2, ignore_eos=True)
    live = _pool(warm).stats().blocks_live
    prompts = [[*prefix, *random_prompt(10 + i, 12)] for i in range(8)]
    ids = [warm.submit(p, max_tokens=8, ignore_eos=True, logprobs=0) for p in prompts]
    await warm.step(2)
    # All eight run, and the prefix is stored once.
    assert warm.core.running == 8
    assert _pool(warm).stats().blocks_live == live
    await warm.step(3)
    warm.core.cancel(ids[3])
    await warm.run()
    for i, (request_id, prompt) in enumerate(zip(ids, prompts, strict=True)):
        assert _cached(warm, request_id) == 200
        if i != 3:
            want = await cold.alone(prompt, max_tokens=8, ignore_eos=True, logprobs=0)
            _same(warm.results[request_id], want)
    # Each has added only its own tail: the blocks of the prefix are one and the same.
    tables = [entry.table for entry in warm.store.entries()]
    assert len({table[: 200 // BLOCK] for table in tables}) == 1
    assert _pool(warm).stats().blocks_shared >= 200 // BLOCK
    assert warm.store.bytes == _pool(warm).bytes_per_block * len({b for t in tables for b in t})
    warm.check()


async def test_flush_and_eviction_while_adopted(core: Make) -> None:
    prefix = random_prompt(1, 100)
    warm, cold = core(cache=True, backend="paged"), core()
    await warm.alone(prefix, max_tokens=2, ignore_eos=True)
    prompt = [*prefix, 1, 2, 3]
    request_id = warm.submit(prompt, max_tokens=12, ignore_eos=True, logprobs=0)
    await warm.step(3)
    warm.core.pause()
    report = warm.store.flush()
    warm.core.give_back()
    assert report.entries == 1
    await warm.run()
    want = await cold.alone(prompt, max_tokens=12, ignore_eos=True, logprobs=0)
    assert _cached(warm, request_id) == 100
    _same(warm.results[request_id], want)
    warm.check()


async def test_other_conversations_do_not_eat_a_stored_one(core: Make) -> None:
    warm = core(cache=True, backend="paged")
    talk = random_prompt(1, 300)
    await warm.alone(talk, max_tokens=2, ignore_eos=True)
    for i in range(20):
        request_id = warm.submit([*talk[:8], *random_prompt(50 + i, 30)], max_tokens=1)
        await warm.run()
        assert _cached(warm, request_id) == 8
    request_id = warm.submit([*talk, 7, 7], max_tokens=1)
    await warm.run()
    assert _cached(warm, request_id) == 300
    warm.check()


async def test_the_budget_holds_and_eviction_keeps_answers_right(core: Make) -> None:
    probe = core(cache=True, backend="paged")
    room = 20 * _pool(probe).bytes_per_block
    warm, cold = core(cache=True, backend="paged", capacity_bytes=room), core()
    for i in range(12):
        prompt = random_prompt(i % 4, 60 + 17 * (i % 5))
        request_id = warm.submit(prompt, max_tokens=3, ignore_eos=True)
        await warm.run()
        assert warm.store.bytes <= room
        assert _pool(warm).stats().bytes_in_use <= room
        want = await cold.alone(prompt, max_tokens=3, ignore_eos=True)
        assert warm.results[request_id].tokens == want.tokens
        warm.check()
    assert warm.store.counters.evictions_lru > 0
    refused = warm.submit(random_prompt(9, 21 * BLOCK), max_tokens=1)
    entries = len(warm.store)
    await warm.run()
    assert warm.results[refused].end is not None
    assert len(warm.store) == entries
    assert warm.store.rejects.counts["oversized"] == 1


async def test_without_apc_only_whole_entries_match(core: Make) -> None:
    warm = core(cache=True, backend="paged", apc={"enabled": False})
    stored = random_prompt(1, 40)
    output = (await warm.alone(stored, max_tokens=3, ignore_eos=True)).tokens
    partial = warm.submit([*stored[:30], 5, 5, 5], max_tokens=1)
    await warm.run()
    whole = warm.submit([*stored, *output, 5], max_tokens=1)
    await warm.run()
    assert _cached(warm, partial) == 0
    assert _cached(warm, whole) == len(stored) + 2
    warm.check()


async def test_adopted_keys_and_values_equal_the_donors(core: Make) -> None:
    """Dense and paged hold the same bytes for the same tokens."""
    prompt = random_prompt(1, 90)
    dense, paged = core(cache=True), core(cache=True, backend="paged")
    for harness in (dense, paged):
        await harness.alone(prompt, max_tokens=5, ignore_eos=True)
    (whole,) = dense.store.entries()
    (entry,) = paged.store.entries()
    assert list(whole.tokens) == list(entry.tokens)
    tokens = len(entry.tokens)
    stored = _pool(paged).read(entry.table, tokens)
    kept = paged_rows.keys_and_values(whole.payload)
    for (k1, v1), (k2, v2) in zip(stored, kept, strict=True):
        assert mx.array_equal(k1, k2[:, :, :tokens]).item()
        assert mx.array_equal(v1, v2[:, :, :tokens]).item()


async def test_a_failing_pool_makes_it_slower_never_wrong(
    core: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = random_prompt(1, 60)
    warm, cold = core(cache=True, backend="paged"), core()
    want = await cold.alone(prompt, max_tokens=4, ignore_eos=True)
    await warm.alone(prompt, max_tokens=4, ignore_eos=True)

    def fail(*_: object) -> None:
        raise RuntimeError("the pool is not well")

    with monkeypatch.context() as patch:
        patch.setattr(BlockPool, "read", fail)
        request_id = warm.submit(prompt, max_tokens=4, ignore_eos=True)
        await warm.run()
    assert _cached(warm, request_id) == 0
    assert warm.results[request_id].tokens == want.tokens
    assert warm.store.rejects.counts["layout_constraints"] == 1
    warm.check()


@pytest.mark.parametrize("fault", ["rope", "last token", "refcount"])
async def test_the_proof_turns_red(core: Make, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """What these tests compare is what would go wrong."""
    prompt = random_prompt(1, 60)
    warm, cold = core(cache=True, backend="paged"), core()
    await warm.alone(prompt, max_tokens=4, ignore_eos=True)
    longer = [*prompt, *random_prompt(2, 20)]
    want = await cold.alone(longer, max_tokens=8, ignore_eos=True, logprobs=0)
    make, read = paged_rows.row_of, BlockPool.read

    def shifted(module: object, layers: list, tokens: int) -> list:
        row = make(module, layers, tokens)
        for leaf in paged_rows.pageable_leaves(row):
            leaf.keys = mx.pad(leaf.keys, [(0, 0), (0, 0), (1, 0), (0, 0)])
            leaf.values = mx.pad(leaf.values, [(0, 0), (0, 0), (1, 0), (0, 0)])
            leaf.offset = tokens + 1
        return row

    def shorn(pool: BlockPool, blocks: tuple, tokens: int) -> list:
        layers = read(pool, blocks, tokens)
        for keys, values in layers:
            keys[:, :, -1:] = 0
            values[:, :, -1:] = 0
        return layers

    if fault == "rope":
        monkeypatch.setattr(paged_rows, "row_of", shifted)
    elif fault == "last token":
        monkeypatch.setattr(BlockPool, "read", shorn)
    else:
        monkeypatch.setattr(BlockPool, "retain", lambda *_: None)
        with pytest.raises((AssertionError, BlockError)):
            await _run_and_check(warm, longer)
        return
    got = await warm.alone(longer, max_tokens=8, ignore_eos=True, logprobs=0)
    assert got.end is not None
    assert got.end.usage.cached_tokens == 60
    assert got.logprobs != pytest.approx(want.logprobs, abs=1e-4)


@pytest.mark.parametrize("family", PAGEABLE)
async def test_requests_that_come_one_after_another_read_the_prefix_together(
    core: Make, family: str
) -> None:
    prefix = random_prompt(1, 300)
    warm, cold = core(family, cache=True, backend="paged"), core(family)
    prompts, ids = [], []
    for i in range(4):
        prompts.append([*prefix, *random_prompt(10 + i, 12)])
        ids.append(warm.submit(prompts[-1], max_tokens=30, ignore_eos=True, logprobs=0))
        while not warm.generated(ids[-1]):
            await warm.step()
    running = warm.core.sequences()
    assert len(running) == 4
    assert {tuple(s.block_table[: 288 // BLOCK]) for s in running} == {
        tuple(running[0].block_table[:18])
    }
    assert all(s.paged_tokens >= 288 for s in running)
    # Each keeps only its own tail: far less than a copy of the prefix each.
    assert warm.core.batch_bytes() < 2 * 300 * warm.reuse.token_bytes
    await warm.run()
    for request_id, prompt in zip(ids, prompts, strict=True):
        want = await cold.alone(prompt, max_tokens=30, ignore_eos=True, logprobs=0)
        _same(warm.results[request_id], want)
    warm.check()
