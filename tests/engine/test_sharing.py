"""A common beginning that nobody has stored yet is computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine_harness import CoreHarness, random_prompt
from mlxceld.engine import sharing
from mlxceld.engine.events import Failed, FinishReason
from mlxceld.engine.sequence import Phase, Sequence
from mlxceld.kv.pool import BlockPool

Make = Callable[..., CoreHarness]


def _cached(harness: CoreHarness, request_id: str) -> int:
    end = harness.results[request_id].end
    assert end is not None
    return end.usage.cached_tokens


async def _check_answers(
    harness: CoreHarness, cold: CoreHarness, prompts: dict[str, list[int]]
) -> None:
    for request_id, prompt in prompts.items():
        want = await cold.alone(prompt, max_tokens=6, ignore_eos=True, logprobs=0)
        assert harness.results[request_id].tokens == want.tokens
        assert harness.results[request_id].logprobs == pytest.approx(want.logprobs, abs=1e-4)


def _submit(harness: CoreHarness, prompts: list[list[int]]) -> dict[str, list[int]]:
    return {harness.submit(p, max_tokens=6, ignore_eos=True, logprobs=0): p for p in prompts}


@pytest.mark.parametrize("family", ["llama", "qwen3", "deepseek_v3"])
async def test_a_cold_burst_computes_its_prefix_once(core: Make, family: str) -> None:
    prefix = random_prompt(1, 200)
    harness = core(family, cache=True, backend="paged")
    prompts = _submit(harness, [[*prefix, i, *random_prompt(i, 7)] for i in range(8)])
    await harness.run()
    distinct = 200 + 8 * 8
    assert harness.recorder.prompt_tokens_computed == distinct
    assert sorted(_cached(harness, i) for i in prompts) == [0] + [200] * 7
    await _check_answers(harness, core(family), prompts)
    assert harness.store.counters.lookups == 8
    harness.check()


async def test_the_same_prompt_eight_times(core: Make) -> None:
    prompt = random_prompt(1, 90)
    harness = core(cache=True, backend="paged")
    prompts = _submit(harness, [prompt] * 8)
    await harness.run()
    assert harness.recorder.prompt_tokens_computed == 90 + 7
    await _check_answers(harness, core(), prompts)
    harness.check()


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
async def test_all_that_a_prompt_needs_is_in_whole_blocks(core: Make, family: str) -> None:
    prompt = random_prompt(1, 9 * 16 + 1)
    harness = core(family, cache=True, backend="paged")
    prompts = _submit(harness, [prompt] * 3)
    await harness.run()
    assert sorted(_cached(harness, i) for i in prompts) == [0, 144, 144]
    await _check_answers(harness, core(family), prompts)
    harness.check()


async def test_a_tree_of_two_levels(core: Make) -> None:
    trunk, branch = random_prompt(1, 160), random_prompt(2, 120)
    leaves = [[*trunk, 250, i, *random_prompt(i, 5)] for i in range(4)]
    deep = [[*trunk, *branch, i, *random_prompt(i, 5)] for i in range(4)]
    harness = core(cache=True, backend="paged", prefill_chunk=48)
    prompts = _submit(harness, [leaves[0], deep[0], deep[1], leaves[1], *deep[2:], *leaves[2:]])
    await harness.run()
    shared_by_leaves = 1  # token 250
    distinct = 160 + 120 + 4 * 6 + shared_by_leaves * 4 + 4 * 6
    assert harness.recorder.prompt_tokens_computed <= 1.05 * distinct
    assert sum(_cached(harness, i) > 0 for i in prompts) == 7
    await _check_answers(harness, core(), prompts)
    harness.check()


@pytest.mark.parametrize("how", ["cancel", "fault"])
async def test_the_leader_goes_halfway(core: Make, how: str) -> None:
    prefix = random_prompt(1, 200)
    harness = core(cache=True, backend="paged", prefill_chunk=32)
    prompts = _submit(harness, [[*prefix, i, *random_prompt(i, 7)] for i in range(6)])
    await harness.step(3)
    leader, *others = harness.core.sequences()
    assert 0 < leader.prefilled < 200
    assert [s.follows for s in others] == [leader] * 5
    if how == "cancel":
        harness.core.cancel(leader.request.id)
    else:
        harness.core._endings.fault(leader, ValueError("a fault of its own"))
    computed = leader.prefilled
    await harness.run()
    gone = harness.results[leader.request.id]
    assert gone.reason is FinishReason.CANCELLED or isinstance(gone.end, Failed)
    prompts.pop(leader.request.id)
    await _check_answers(harness, core(), prompts)
    distinct = 200 + 5 * 8
    lost = 0 if how == "cancel" else computed
    assert harness.recorder.prompt_tokens_computed <= distinct + computed + lost
    assert all(s.phase is Phase.DONE for s in others)
    harness.check()


async def test_a_follower_that_goes_leaves_the_leader_alone(core: Make) -> None:
    prefix = random_prompt(1, 200)
    harness = core(cache=True, backend="paged", prefill_chunk=32)
    prompts = _submit(harness, [[*prefix, i, *random_prompt(i, 7)] for i in range(3)])
    await harness.step(2)
    ids = list(prompts)
    harness.core.cancel(ids[1])
    await harness.run()
    assert harness.results[ids[1]].reason is FinishReason.CANCELLED
    prompts.pop(ids[1])
    await _check_answers(harness, core(), prompts)
    harness.check()


async def test_who_shares_little_with_a_long_prompt_does_not_wait_for_it(core: Make) -> None:
    long = random_prompt(1, 1200)
    short = [*long[:64], *random_prompt(2, 10)]
    harness = core(cache=True, backend="paged", prefill_chunk=32)
    leader = harness.submit(long, max_tokens=2, ignore_eos=True)
    await harness.step(1)
    follower = harness.submit(short, max_tokens=6, ignore_eos=True, logprobs=0)
    while not harness.generated(follower):
        await harness.step()
    assert not harness.generated(leader)
    await harness.run()
    assert _cached(harness, follower) == 64
    await _check_answers(harness, core(), {follower: short})
    harness.check()


async def test_a_prompt_is_shared_while_its_answer_is_generated(core: Make) -> None:
    prompt = random_prompt(1, 150)
    harness = core(cache=True, backend="paged")
    first = harness.submit(prompt, max_tokens=60, ignore_eos=True)
    await harness.step(8)
    assert harness.generated(first)
    second = harness.submit([*prompt, 5, 6, 7], max_tokens=6, ignore_eos=True)
    await harness.step(4)
    assert harness.core.busy
    await harness.run()
    assert _cached(harness, second) == 149
    harness.check()


async def test_nobody_waits_where_nothing_can_be_shared(core: Make) -> None:
    prefix = random_prompt(1, 100)
    for harness in (core(cache=True), core(cache=False, backend="paged")):
        prompts = _submit(harness, [[*prefix, i] for i in range(3)])
        await harness.step(1)
        assert all(s.follows is None for s in harness.core.sequences())
        await harness.run()
        assert all(_cached(harness, i) == 0 for i in prompts)


async def test_prompts_computed_as_one_group_are_shared_early_too(core: Make) -> None:
    prompts = [random_prompt(i, 150 + 20 * i) for i in range(3)]
    harness = core(cache=True, backend="paged", prefill_chunk=1024)
    ids = _submit(harness, prompts)
    await harness.step(1)
    assert [len(entry.tokens) for entry in harness.store.entries()] == [149, 169, 189]
    adopter = harness.submit([*prompts[1], 7, 7], max_tokens=6, ignore_eos=True, logprobs=0)
    await harness.run()
    assert _cached(harness, adopter) == 169
    await _check_answers(harness, core(), {**ids, adopter: [*prompts[1], 7, 7]})
    harness.check()


async def test_nobody_fails_where_sharing_early_fails(
    core: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = random_prompt(1, 200)
    harness = core(cache=True, backend="paged", prefill_chunk=64)
    prompts = _submit(harness, [[*prefix, i, *random_prompt(i, 7)] for i in range(3)])

    def fail(*_: object) -> None:
        raise RuntimeError("the pool is not well")

    with monkeypatch.context() as patch:
        patch.setattr(BlockPool, "seal", fail)
        await harness.run()
    await _check_answers(harness, core(), prompts)
    assert harness.recorder.prompt_tokens_computed == 3 * 208
    harness.check()


async def test_prompts_in_flight_are_compared_once_an_admission(
    core: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    leader_of = sharing.leader_of

    def noted(sequence: Sequence, *rest: Any) -> Any:
        compared.append(sequence.seq_id)
        return leader_of(sequence, *rest)

    monkeypatch.setattr(sharing, "leader_of", noted)
    harness = core(cache=True, backend="paged")
    _submit(harness, [random_prompt(i, 90) for i in range(3)])
    await harness.run()
    assert compared == [1, 2, 3]
    # Who follows is compared again when it goes on: another one may begin with more by then.
    prefix = random_prompt(9, 90)
    _submit(harness, [[*prefix, 1, 2], [*prefix, 3, 4]])
    await harness.run()
    assert compared == [1, 2, 3, 4, 5, 5]
