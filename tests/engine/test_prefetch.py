"""Next turns computed ahead: exact, stored, interrupted at once, and never in a request's way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine_harness import CoreHarness, random_prompt
from mlxceld.engine.prefetch import CONVERSATIONS, Prefetcher
from mlxceld.engine.request import RAW_PROMPT_SIGNATURE, NextTurn
from mlxceld.models.boundaries import Boundary
from mlxceld.prompt_cache.snapshot_entry import Origin

Make = Callable[..., CoreHarness]

ASK: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True, "logprobs": 0}

FAMILIES = ["llama", "deepseek_v3", "mamba", "rwkv7", "qwen3_next", "lfm2", "gemma3_text"]
"""Pageable, recurrent, hybrid and windowed."""


def turn(tokens: list[int], session: str = "s", signature: str = RAW_PROMPT_SIGNATURE) -> NextTurn:
    return NextTurn(tokens, session, signature, "laptop")


def prefetcher(bench: CoreHarness, **options: Any) -> Prefetcher:
    defaults: dict[str, Any] = {"chunk": 32, "allowed": lambda: True}
    return Prefetcher(
        bench.model.module,
        bench.reuse,
        in_flight=bench.core.sequences,
        **{**defaults, **options},
    )


def work_off(ahead: Prefetcher) -> int:
    """Run all that is to be prefetched; in how many chunks."""
    steps = 0
    while ahead.pending:
        ahead.step()
        steps += 1
        assert steps < 100, "prefetching does not come to an end"
    return steps


def cached(bench: CoreHarness, request_id: str) -> int:
    end = bench.results[request_id].end
    assert end is not None
    return end.usage.cached_tokens


def counts(bench: CoreHarness) -> list[tuple[int, int, int]]:
    stores = (store.counters for store in bench.cache.stores)
    return [(counters.lookups, counters.hits, counters.misses) for counters in stores]


@pytest.mark.parametrize(
    ("family", "backend"), [*((name, "paged") for name in FAMILIES), ("llama", "dense")]
)
async def test_the_next_turn_computes_only_what_is_new(
    core: Make, family: str, backend: str
) -> None:
    warm, cold = core(family, cache=True, backend=backend), core(family)
    first = random_prompt(1, 70)
    marks = (Boundary(66, "boundary"),)
    await warm.alone(first, boundaries=marks, **ASK)
    before, decided = counts(warm), len(warm.reuse.store.rejects.outcomes)
    ahead = prefetcher(warm)
    history = [*first[:66], *random_prompt(2, 50)]
    ahead.offer(turn(history))
    work_off(ahead)
    assert counts(warm) == before
    if backend == "paged":
        assert ahead.counters.tokens == 50
    assert (ahead.counters.run, ahead.counters.skipped) == (1, 0)
    assert len(warm.reuse.store.rejects.outcomes) == decided
    asked = [*history, *random_prompt(3, 9)]
    request_id = warm.submit(asked, boundaries=(Boundary(120, "boundary"),), **ASK)
    await warm.run()
    assert cached(warm, request_id) == len(history)
    got, want = warm.results[request_id], await cold.alone(asked, **ASK)
    assert got.tokens == want.tokens
    assert got.logprobs == pytest.approx(want.logprobs, abs=1e-4)
    warm.check()


async def test_snapshots_of_what_was_prefetched_go_with_the_next_boundary(core: Make) -> None:
    warm = core("qwen3_next", cache=True, backend="paged")
    kept = warm.store
    first = random_prompt(1, 70)
    await warm.alone(first, boundaries=(Boundary(66, "boundary"),), **ASK)
    ahead = prefetcher(warm)
    history = [*first[:66], *random_prompt(2, 50)]
    ahead.offer(turn(history))
    work_off(ahead)
    # Answering the first turn anew still has its own boundary.
    assert (kept.count(Origin.BOUNDARY), kept.count(Origin.PREFETCH)) == (1, 1)
    asked = [*history, *random_prompt(3, 9)]
    await warm.alone(asked, boundaries=(Boundary(120, "boundary"),), **ASK)
    assert (kept.count(Origin.BOUNDARY), kept.count(Origin.PREFETCH)) == (1, 0)
    assert kept.counters.evictions_lru == 0


@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
async def test_an_interruption_keeps_what_is_done_and_goes_on_later(
    core: Make, family: str
) -> None:
    warm = core(family, cache=True, backend="paged")
    ahead = prefetcher(warm)
    history = random_prompt(2, 100)
    ahead.offer(turn(history))
    ahead.step()
    ahead.step()
    ahead.interrupt()
    assert ahead.counters.tokens == 64
    # Another conversation comes between; then only the rest is computed.
    await warm.alone(random_prompt(9, 40), session="other", **ASK)
    assert ahead.pending
    assert work_off(ahead) == 2
    assert (ahead.counters.tokens, ahead.counters.run) == (100, 1)
    request_id = warm.submit([*history, 1, 2, 3], **ASK)
    await warm.run()
    assert cached(warm, request_id) == 100
    warm.check()


@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
async def test_the_next_turn_itself_takes_over_what_is_done(core: Make, family: str) -> None:
    warm, cold = core(family, cache=True, backend="paged"), core(family)
    ahead = prefetcher(warm)
    history = random_prompt(2, 100)
    ahead.offer(turn(history))
    ahead.step()
    asked = [*history, 1, 2, 3]
    request_id = warm.submit(asked, **ASK)
    (sequence,) = warm.core.sequences()
    ahead.overtaken(sequence.request)
    assert not ahead.pending
    assert ahead.counters.skipped == 1
    await warm.run()
    assert cached(warm, request_id) == 32
    assert warm.results[request_id].tokens == (await cold.alone(asked, **ASK)).tokens
    # What is offered while its own next turn runs is late.
    warm.submit(asked, **ASK)
    ahead.offer(turn(history))
    assert not ahead.pending
    await warm.run()


async def test_the_newest_conversations_are_kept_the_newest_first(core: Make) -> None:
    warm = core("llama", cache=True, backend="paged")
    ahead = prefetcher(warm)
    histories = [random_prompt(seed, 20) for seed in range(CONVERSATIONS + 3)]
    for number, history in enumerate(histories):
        ahead.offer(turn(history, session=f"s{number}"))
    assert ahead.counters.skipped == 3
    ahead.step()
    newest = warm.store.entries()[-1]
    assert list(newest.tokens) == histories[-1]
    work_off(ahead)
    assert ahead.counters.run == CONVERSATIONS
    assert {entry.session for entry in warm.store.entries()} == {f"s{n}" for n in range(3, 11)}


async def test_a_later_turn_takes_the_place_of_an_earlier_one(core: Make) -> None:
    warm = core("llama", cache=True, backend="paged")
    ahead = prefetcher(warm)
    history = random_prompt(1, 40)
    ahead.offer(turn(history[:20]))
    ahead.offer(turn(history[:20], session="other"))
    ahead.offer(turn(history[:20], signature="other"))
    ahead.offer(turn(history))
    assert ahead.counters.skipped == 1
    work_off(ahead)
    # The other session's beginning is there by then; what was rendered otherwise is not.
    assert (ahead.counters.run, ahead.counters.skipped) == (2, 2)


async def test_nothing_is_done_where_it_is_not_worth_it(core: Make) -> None:
    warm = core("qwen3_next", cache=True, backend="paged")
    history = random_prompt(1, 60)
    await warm.alone([*history, 1], boundaries=(Boundary(56, "boundary"),), **ASK)
    ahead = prefetcher(warm)
    ahead.offer(turn(history))
    ahead.offer(turn([]))
    work_off(ahead)
    assert (ahead.counters.run, ahead.counters.skipped, ahead.counters.tokens) == (0, 2, 0)


async def test_without_permission_all_is_dropped(core: Make) -> None:
    warm = core("llama", cache=True, backend="paged")
    answers = [False, True]
    ahead = prefetcher(warm, allowed=lambda: answers.pop(0))
    ahead.offer(turn(random_prompt(1, 20)))
    ahead.offer(turn(random_prompt(2, 20), session="other"))
    ahead.step()
    assert not ahead.pending
    assert ahead.counters.skipped == 2
    ahead.offer(turn(random_prompt(1, 20)))
    work_off(ahead)
    assert ahead.counters.run == 1


async def test_a_disabled_cache_is_not_computed_for(core: Make) -> None:
    bench = core("llama", cache=False)
    ahead = prefetcher(bench)
    ahead.offer(turn(random_prompt(1, 20)))
    work_off(ahead)
    assert (ahead.counters.run, ahead.counters.skipped) == (0, 1)


@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
async def test_what_does_not_fit_the_budget_is_not_computed(core: Make, family: str) -> None:
    warm = core(family, cache=True, backend="paged")
    needed = (100 + 256) * warm.reuse.token_bytes
    ahead = prefetcher(warm, limit=warm.reuse.reserved_bytes() + needed - 1)
    ahead.offer(turn(random_prompt(1, 100)))
    work_off(ahead)
    assert (ahead.counters.run, ahead.counters.skipped, ahead.counters.tokens) == (0, 1, 0)
    ahead = prefetcher(warm, limit=warm.reuse.reserved_bytes() + needed)
    ahead.offer(turn(random_prompt(1, 100)))
    work_off(ahead)
    assert ahead.counters.run == 1
    warm.check()


async def test_what_leaves_no_room_for_a_next_turn_is_not_computed(core: Make) -> None:
    warm = core("llama", cache=True, backend="paged")
    ahead = prefetcher(warm, context_length=100)
    ahead.offer(turn(random_prompt(1, 100)))
    ahead.offer(turn(random_prompt(1, 99), session="other"))
    work_off(ahead)
    assert (ahead.counters.run, ahead.counters.skipped, ahead.counters.tokens) == (1, 1, 99)


async def test_a_fault_ends_one_prefetch_and_nothing_else(
    core: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    warm = core("llama", cache=True, backend="paged")
    ahead = prefetcher(warm)

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    ahead.offer(turn(random_prompt(1, 20)))
    with monkeypatch.context() as patch:
        patch.setattr("mlxceld.engine.prefetch.run_chunk", fail)
        ahead.step()
    assert "a next turn could not be computed ahead" in caplog.text
    assert not ahead.pending
    assert (ahead.counters.run, ahead.counters.skipped) == (0, 1)
    ahead.offer(turn(random_prompt(1, 20)))
    work_off(ahead)
    assert ahead.counters.run == 1
    warm.check()
