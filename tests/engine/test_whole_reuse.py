"""Whole-prefix reuse gives the tokens of a cold run, over every kind of cache."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import pytest

from engine_harness import CoreHarness, random_prompt
from mlxceld.engine.events import FinishReason
from tiny_models import tiny_families

Make = Callable[..., CoreHarness]


def _cached(harness: CoreHarness, request_id: str) -> int:
    end = harness.results[request_id].end
    assert end is not None
    return end.usage.cached_tokens


@pytest.mark.parametrize("family", tiny_families())
@pytest.mark.parametrize("length", [20, 100])
async def test_the_next_turn_equals_a_cold_run(core: Make, family: str, length: int) -> None:
    first = random_prompt(1, length)
    warm, cold = core(family, cache=True), core(family)
    # Two rows, so that what is stored was taken out of a batch.
    beside = warm.submit(random_prompt(2, length + 9), max_tokens=15, ignore_eos=True)
    turn1 = await warm.alone(first, max_tokens=10, ignore_eos=True)
    assert warm.results[beside].reason is FinishReason.LENGTH
    second = [*first, *turn1.tokens, *random_prompt(3, 12)]
    request_id = warm.submit(second, max_tokens=10, ignore_eos=True, logprobs=0)
    await warm.run()
    want = await cold.alone(second, max_tokens=10, ignore_eos=True, logprobs=0)
    assert _cached(warm, request_id) >= length + 9
    assert warm.results[request_id].tokens == want.tokens
    assert warm.results[request_id].logprobs == pytest.approx(want.logprobs, abs=1e-4)
    warm.store.check()


@pytest.mark.parametrize("dropped", [0, 1])
async def test_a_prompt_equal_to_an_earlier_one_plus_its_output(core: Make, dropped: int) -> None:
    prompt = random_prompt(1, 30)
    warm, cold = core(cache=True), core()
    output = (await warm.alone(prompt, max_tokens=8, ignore_eos=True)).tokens
    # The store holds all but the last sampled token: one prompt is just that, one is longer.
    exact = [*prompt, *output[: len(output) - dropped]]
    request_id = warm.submit(exact, max_tokens=6, ignore_eos=True)
    await warm.run()
    assert _cached(warm, request_id) == len(prompt) + len(output) - 1 - dropped
    want = await cold.alone(exact, max_tokens=6, ignore_eos=True)
    assert warm.results[request_id].tokens == want.tokens


async def test_a_cancelled_request_leaves_what_it_computed(core: Make) -> None:
    prompt = random_prompt(1, 200)
    warm, cold = core(cache=True, prefill_chunk=16), core()
    request_id = warm.submit(prompt, max_tokens=4, ignore_eos=True)
    await warm.step(5)
    warm.core.cancel(request_id)
    await warm.run()
    again = warm.submit(prompt, max_tokens=4, ignore_eos=True)
    await warm.run()
    assert _cached(warm, again) >= 48
    want = await cold.alone(prompt, max_tokens=4, ignore_eos=True)
    assert warm.results[again].tokens == want.tokens


async def test_bytes_on_the_books_are_what_the_arrays_hold(core: Make) -> None:
    from mlxceld.kv import row_caches

    warm = core(cache=True)
    for i in range(3):
        warm.submit(random_prompt(i, 40 + 100 * i), max_tokens=5, ignore_eos=True)
    await warm.run()
    entries = warm.store.entries()
    assert len(entries) == 3
    for entry in entries:
        arrays = [a for a in row_caches.arrays(entry.payload) if a.ndim == 4]
        assert entry.nbytes == sum(a.nbytes for a in arrays)


async def test_another_signature_never_shares(core: Make) -> None:
    from dataclasses import replace

    warm = core(cache=True)
    prompt = random_prompt(1, 30)
    output = (await warm.alone(prompt, max_tokens=4, ignore_eos=True)).tokens
    longer = [*prompt, *output, 7]
    request_id = warm.submit(longer, max_tokens=2)
    sequence = warm.core.sequences()[0]
    sequence.request = replace(sequence.request, template_signature="another")
    await warm.run()
    assert _cached(warm, request_id) == 0


async def test_a_prefix_that_cannot_be_trimmed_is_a_miss(
    core: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = random_prompt(1, 30)
    warm, cold = core(cache=True), core()
    output = (await warm.alone(prompt, max_tokens=4, ignore_eos=True)).tokens
    exact = [*prompt, *output[:-1]]

    def fail(*_: object) -> None:
        raise RuntimeError("no trimming today")

    monkeypatch.setattr("mlxceld.kv.row_caches.trim", fail)
    request_id = warm.submit(exact, max_tokens=4, ignore_eos=True)
    await warm.run()
    assert _cached(warm, request_id) == 0
    want = await cold.alone(exact, max_tokens=4, ignore_eos=True)
    assert warm.results[request_id].tokens == want.tokens
    assert warm.store.counters.hits == 0
    assert warm.store.rejects.counts["layout_constraints"] == 1
    warm.store.check()


async def test_hits_go_with_the_conversation(core: Make) -> None:
    warm = core(cache=True)
    tokens = random_prompt(1, 30)
    for turn in range(3):
        tokens = [*tokens, *(await warm.alone(tokens, max_tokens=4, ignore_eos=True)).tokens, 7]
        assert [entry.hits for entry in warm.store.entries()] == [turn]


@pytest.mark.parametrize("backend", ["dense", "paged"])
async def test_a_donation_that_fails_costs_nobody_his_answer(
    core: Make, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    warm = core(cache=True, backend=backend)
    want = (await core().alone("steady", max_tokens=12, ignore_eos=True)).tokens
    steady = warm.submit("steady", max_tokens=12, ignore_eos=True)
    short = warm.submit("short", max_tokens=2, ignore_eos=True)

    def fail(_: object) -> None:
        raise RuntimeError("nothing can be kept")

    with monkeypatch.context() as patch:
        patch.setattr(warm.reuse, "donate", fail)
        await warm.run()
    assert warm.results[short].reason is FinishReason.LENGTH
    assert warm.results[steady].tokens == want
    assert len(warm.store) == 0
    assert (await warm.alone("steady", max_tokens=12, ignore_eos=True)).tokens == want
    assert len(warm.store) == 1


async def test_what_leaves_the_store_goes_back_to_the_system(core: Make) -> None:
    warm = core("qwen3_next", cache=True)
    await warm.alone(random_prompt(1, 300), max_tokens=2, ignore_eos=True)
    mx.clear_cache()
    held = mx.get_active_memory()
    kept = warm.store.bytes
    warm.store.flush()
    warm.core.give_back()
    assert mx.get_active_memory() <= held - kept
    assert mx.get_cache_memory() == 0


@pytest.mark.parametrize(
    ("family", "backend"), [("llama", "paged"), ("qwen3_next", "paged"), ("llama", "dense")]
)
async def test_what_runs_in_the_background_is_told_and_is_no_look_up_of_a_request(
    core: Callable[..., CoreHarness], family: str, backend: str
) -> None:
    bench = core(family, cache=True, backend=backend)
    prompt = random_prompt(1, 50)
    for _ in range(2):
        bench.submit(prompt, max_tokens=1, background=True)
        await bench.run()
    counters = bench.store.counters
    assert counters.inserts > 0
    assert "adopt" in [event.event for event in bench.trace.tail(99)]
    assert (counters.lookups, counters.hits, counters.misses) == (0, 0, 0)
    await bench.alone(prompt, max_tokens=1)
    assert (counters.lookups, counters.hits, counters.misses) == (1, 1, 0)
    bench.check()
