"""One budget for what runs and what is stored: who waits, who makes way, and the answers stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine_harness import CoreHarness, random_prompt
from mlxceld.engine.paged_reuse import PagedReuse
from mlxceld.engine.sequence import Phase
from work_counter import counted

Make = Callable[..., CoreHarness]


def _token_bytes(core: Make, family: str) -> int:
    return core(family, cache=True, backend="paged").reuse.token_bytes


async def _answers(
    cold: CoreHarness, harness: CoreHarness, prompts: dict[str, list[int]], tokens: int
) -> None:
    for request_id, prompt in prompts.items():
        want = await cold.alone(prompt, max_tokens=tokens, ignore_eos=True, logprobs=0)
        got = harness.results[request_id]
        assert got.tokens == want.tokens
        assert got.logprobs == pytest.approx(want.logprobs, abs=1e-4)


async def _run_within(harness: CoreHarness, limit: int) -> int:
    """Run to the end; the budget holds after every step. Returns the most rows that ran at once."""
    most = 0
    for _ in range(5000):
        if not harness.core.busy:
            break
        await harness.step()
        assert harness.reuse.reserved_bytes() + harness.core.batch_bytes() <= limit
        most = max(most, harness.core.running)
    assert not harness.core.busy
    await harness.collect()
    harness.check()
    return most


@pytest.mark.parametrize("family", ["llama", "qwen3", "deepseek_v3"])
async def test_the_youngest_make_way_and_go_on_where_they_were(core: Make, family: str) -> None:
    prefix = random_prompt(1, 600)
    limit = 780 * _token_bytes(core, family)
    harness = core(family, cache=True, backend="paged", kv_bytes=limit)
    prompts = {
        harness.submit([*prefix, i], max_tokens=90, ignore_eos=True, logprobs=0): [*prefix, i]
        for i in range(6)
    }
    most = await _run_within(harness, limit)
    assert most >= 2
    # Nobody comes back only to make way again at once.
    assert 2 <= harness.recorder.preemptions <= 12
    await _answers(core(family), harness, prompts, 90)
    assert harness.recorder.prompt_tokens == 6 * 601
    assert harness.recorder.completion_tokens == 6 * 90
    counters = harness.store.counters
    assert counters.lookups == 6 == counters.hits + counters.misses


async def test_who_does_not_fit_waits_and_says_so(core: Make) -> None:
    limit = 500 * _token_bytes(core, "llama")
    harness = core(cache=True, backend="paged", kv_bytes=limit)
    prompts = {
        harness.submit(p, max_tokens=40, ignore_eos=True, logprobs=0): p
        for p in (random_prompt(i, 300) for i in range(3))
    }
    await harness.step(3)
    first, *others = harness.core.sequences()
    assert first.phase is not Phase.WAITING
    assert [s.phase for s in others] == [Phase.WAITING] * 2
    assert others[0].note.startswith("waits for")
    await _run_within(harness, limit)
    assert harness.recorder.preemptions == 0
    await _answers(core(), harness, prompts, 40)


async def test_entries_go_before_sequences_do(core: Make) -> None:
    limit = 1000 * _token_bytes(core, "llama")
    harness = core(cache=True, backend="paged", kv_bytes=limit)
    for i in range(3):
        await harness.alone(random_prompt(10 + i, 250), max_tokens=1, ignore_eos=True)
    before = len(harness.store)
    prompts = {
        harness.submit(p, max_tokens=60, ignore_eos=True, logprobs=0): p
        for p in (random_prompt(i, 300) for i in range(2))
    }
    most = await _run_within(harness, limit)
    assert most == 2
    assert harness.recorder.preemptions == 0
    assert before >= 3
    assert harness.store.counters.evictions_lru >= 1
    await _answers(core(), harness, prompts, 60)


async def test_the_dense_backend_keeps_to_the_budget_too(core: Make) -> None:
    limit = 500 * _token_bytes(core, "llama")
    harness = core(cache=True, kv_bytes=limit)
    prompts = {
        harness.submit(p, max_tokens=80, ignore_eos=True, logprobs=0): p
        for p in (random_prompt(i, 100) for i in range(4))
    }
    await _run_within(harness, limit)
    assert harness.recorder.preemptions > 0
    await _answers(core(), harness, prompts, 80)


async def test_a_long_row_does_not_pad_the_short_ones(core: Make) -> None:
    harness = core(cache=True, backend="paged", max_batch_size=8)
    long = random_prompt(1, 1500)
    prompts = {harness.submit(long, max_tokens=40, ignore_eos=True, logprobs=0): long}
    while not harness.generated(next(iter(prompts))):
        await harness.step()
    for i in range(7):
        short = random_prompt(10 + i, 40)
        prompts[harness.submit(short, max_tokens=10, ignore_eos=True, logprobs=0)] = short
    while not all(harness.generated(i) for i in prompts):
        await harness.step()
    assert harness.core.running == 8
    tokens = 1500 + 7 * 40
    assert harness.core.batch_bytes() < 2 * tokens * harness.reuse.token_bytes
    await harness.run()
    await _answers(core(), harness, {i: p for i, p in prompts.items() if p is not long}, 10)
    await _answers(core(), harness, {i: p for i, p in prompts.items() if p is long}, 40)
    harness.check()


async def test_nothing_is_held_when_nothing_runs(core: Make) -> None:
    harness = core(cache=True, backend="paged")
    prefix = random_prompt(1, 300)
    await harness.alone(prefix, max_tokens=1)
    for i in range(5):
        harness.submit([*prefix, i], max_tokens=20, ignore_eos=True)
    await harness.step(6)
    assert isinstance(harness.reuse, PagedReuse)
    assert any(s.block_table for s in harness.core.sequences())
    harness.core.pause()
    harness.store.flush()
    harness.core.give_back()
    held = harness.reuse._pool.stats()
    assert held.blocks_live == 300 // 16
    assert held.blocks_allocated <= held.blocks_live + 1024 // 16
    await harness.run()
    harness.core.pause()
    harness.store.flush()
    harness.core.give_back()
    assert harness.reuse._pool.stats().blocks_allocated == 0


@pytest.mark.parametrize(("min_prefix", "reason"), [(40, "block_boundary_floor"), (32, None)])
async def test_without_room_for_the_partial_block_only_whole_ones_are_adopted(
    core: Make, min_prefix: int, reason: str | None
) -> None:
    harness = core(cache=True, backend="paged", min_prefix=min_prefix)
    prefix = random_prompt(1, 45)
    await harness.alone(prefix, max_tokens=1, ignore_eos=True)
    assert isinstance(harness.reuse, PagedReuse)
    pool = harness.reuse._pool
    room = pool.room()
    prompt = [*prefix, *random_prompt(2, 9)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(pool), "room", lambda _: min(room, 5 * harness.reuse.token_bytes))
        request_id = harness.submit(prompt, max_tokens=6, ignore_eos=True, logprobs=0)
        await harness.run()
    end = harness.results[request_id].end
    assert end is not None
    assert end.usage.cached_tokens == (0 if reason else 32)
    assert harness.store.rejects.counts["block_boundary_floor"] == (1 if reason else 0)
    counters = harness.store.counters
    assert (counters.hits, counters.misses) == ((0, 2) if reason else (1, 1))
    await _answers(core(), harness, {request_id: prompt}, 6)
    harness.check()


async def test_who_made_way_and_is_cancelled_then_is_no_refusal(core: Make) -> None:
    prefix = random_prompt(1, 600)
    harness = core(cache=True, backend="paged", kv_bytes=780 * _token_bytes(core, "llama"))
    for i in range(6):
        harness.submit([*prefix, i], max_tokens=90, ignore_eos=True)
    for _ in range(500):
        await harness.step()
        if harness.recorder.preemptions:
            break
    made_way = next(s for s in harness.core.sequences() if s.resumed)
    assert made_way.phase is Phase.WAITING
    harness.core.cancel(made_way.request.id)
    await harness.step(2)
    assert made_way.phase is Phase.DONE
    assert not any(harness.store.rejects.counts.values())
    await harness.run()
    harness.check()


@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
@pytest.mark.parametrize("backend", ["paged", "dense"])
async def test_while_the_first_in_line_lacks_memory_steps_overlap_and_nothing_is_looked_up(
    core: Make, family: str, backend: str
) -> None:
    limit = 500 * _token_bytes(core, family)
    harness = core(family, cache=True, backend=backend, kv_bytes=limit)
    with counted(harness) as work:
        harness.submit(random_prompt(1, 300), max_tokens=60, ignore_eos=True)
        harness.submit(random_prompt(2, 300), max_tokens=2, ignore_eos=True)
        harness.submit(random_prompt(3, 300), max_tokens=2, ignore_eos=True)
        while not harness.generated("r1"):
            await harness.step()
        await harness.step(2)
        waiting = harness.core.waiting
        lookups, overlapped = work.lookups, work.overlapped_steps
        await harness.step(40)
        assert harness.core.waiting == waiting == 2
        assert harness.core.sequences()[1].note.startswith("waits for")
        assert work.lookups == lookups == 2
        assert work.overlapped_steps - overlapped == 40
        await harness.run()
    assert work.lookups == 3
    harness.check()
