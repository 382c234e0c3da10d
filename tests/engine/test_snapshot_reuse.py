"""Models that resume at snapshots: the same tokens as cold, and each prompt's beginning once."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from engine_harness import CoreHarness, Result, random_prompt
from mlxceld.engine.snapshot_reuse import SnapshotReuse
from mlxceld.models.boundaries import Boundary
from mlxceld.prompt_cache.reports import BudgetChange
from mlxceld.prompt_cache.snapshot_entry import Origin

Make = Callable[..., CoreHarness]

FAMILIES = [
    "mamba",
    "mamba2",
    "rwkv7",
    "gemma3_text",
    "gpt_oss",
    "cohere2",
    "qwen3_next",
    "qwen3_5",
    "falcon_h1",
    "lfm2",
]
"""Every family of the fixture with a cache that is not pageable."""

HYBRIDS = ["qwen3_next", "lfm2", "gemma3_text"]

LENGTHS = {
    "within the window": (9, 20),
    "on the edge of a chunk": (64, 128),
    "beyond the window": (70, 150),
}
"""Head and history, in tokens."""


def _cached(harness: CoreHarness, request_id: str) -> int:
    end = harness.results[request_id].end
    assert end is not None
    return end.usage.cached_tokens


def _same(got: Result, want: Result) -> None:
    assert got.tokens == want.tokens
    assert got.logprobs == pytest.approx(want.logprobs, abs=1e-4)


def _warm(core: Make, family: str, **options: Any) -> CoreHarness:
    harness = core(family, cache=True, backend="paged", **options)
    assert isinstance(harness.reuse, SnapshotReuse)
    return harness


def _points(head: int, boundary: int) -> tuple[Boundary, ...]:
    return Boundary(head, "head"), Boundary(boundary, "boundary")


ASK: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True, "logprobs": 0}


@pytest.mark.parametrize(
    ("family", "length"),
    # The slow one is held to its chunks only.
    [
        (family, name)
        for family in FAMILIES
        for name in LENGTHS
        if family != "falcon_h1" or name == "on the edge of a chunk"
    ],
)
async def test_resumed_equals_cold(core: Make, family: str, length: str) -> None:
    head, history = LENGTHS[length]
    warm, cold = _warm(core, family), core(family)
    talk = random_prompt(1, history + 40)
    first = [*talk[:history], 7, 8, 9]
    request_id = warm.submit(first, boundaries=_points(head, history), **ASK)
    await warm.run()
    _same(warm.results[request_id], await cold.alone(first, **ASK))
    # The next turn of the session goes on from the boundary, another session from the head.
    for session, reused, prompt in (
        ("s", history, [*talk, 7, 8, 9]),
        ("other", head, [*talk[:head], *random_prompt(2, 30)]),
    ):
        points = _points(head, len(prompt) - 3)
        request_id = warm.submit(prompt, session=session, boundaries=points, **ASK)
        await warm.run()
        assert _cached(warm, request_id) == reused
        _same(warm.results[request_id], await cold.alone(prompt, **ASK))
    warm.check()


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_batch_of_cold_resumed_and_generating_rows(core: Make, family: str) -> None:
    warm, cold = _warm(core, family, prefill_chunk=32), core(family)
    head = random_prompt(1, 45)
    await warm.alone([*head, 1, 2, 3], boundaries=(Boundary(45, "head"),), **ASK)
    prompts = [
        random_prompt(3, 21),
        [*head, *random_prompt(4, 50)],
        [*head, *random_prompt(5, 5)],
        random_prompt(6, 110),
        [*head, *random_prompt(7, 17)],
    ]
    ask = {**ASK, "max_tokens": 9}
    ids = []
    for number, prompt in enumerate(prompts):
        # Others generate while this one is computed, and its state is kept while they do.
        points = _points(min(45, len(prompt) - 2), len(prompt) - 2)
        ids.append(warm.submit(prompt, session=f"s{number}", boundaries=points, **ask))
        await warm.step(2)
    await warm.run()
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert _cached(warm, request_id) == (45 if prompt[:45] == head else 0)
        _same(warm.results[request_id], await cold.alone(prompt, **ask))
    warm.check()


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_end_of_an_answer_is_resumed(core: Make, family: str) -> None:
    warm, cold = _warm(core, family), core(family)
    prompt = random_prompt(1, 50)
    answer = await warm.alone(prompt, **ASK)
    assert warm.store.count(Origin.COMPLETION) == 1
    longer = [*prompt, *answer.tokens, *random_prompt(2, 12)]
    request_id = warm.submit(longer, **ASK)
    await warm.run()
    assert _cached(warm, request_id) == len(prompt) + len(answer.tokens) - 1
    _same(warm.results[request_id], await cold.alone(longer, **ASK))
    warm.check()


@pytest.mark.parametrize(
    "leave",
    [
        lambda store: store.flush(),
        lambda store: store.resize(BudgetChange(snapshot_max_entries=0)),
        lambda store: store.resize(BudgetChange(snapshot_capacity_bytes=1)),
        lambda store: [store._evict_oldest() for _ in store.entries()],
    ],
    ids=["flushed", "switched off", "resized away", "evicted"],
)
@pytest.mark.parametrize("family", ["mamba2", *HYBRIDS])
async def test_a_snapshot_that_goes_while_a_row_resumes_from_it(
    core: Make, family: str, leave: Callable[[Any], object]
) -> None:
    warm, cold = _warm(core, family, prefill_chunk=16), core(family)
    talk = random_prompt(1, 80)
    await warm.alone([*talk, 1], boundaries=(Boundary(80, "boundary"),), **ASK)
    prompt = [*talk, *random_prompt(2, 60)]
    request_id = warm.submit(prompt, boundaries=(Boundary(120, "boundary"),), **ASK)
    await warm.step(2)
    leave(warm.store)
    warm.reuse.settle(())
    await warm.run()
    assert _cached(warm, request_id) == 80
    _same(warm.results[request_id], await cold.alone(prompt, **ASK))
    warm.check()


@pytest.mark.parametrize("family", ["mamba2", *HYBRIDS])
async def test_a_superseded_snapshot_that_a_row_resumes_from(core: Make, family: str) -> None:
    warm, cold = _warm(core, family, prefill_chunk=16), core(family)
    talk = random_prompt(1, 80)
    await warm.alone([*talk, 1], boundaries=(Boundary(80, "boundary"),), **ASK)
    prompts = [[*talk, *random_prompt(2 + i, 60)] for i in range(2)]
    ids = [warm.submit(p, boundaries=(Boundary(120, "boundary"),), **ASK) for p in prompts]
    await warm.run()
    store = warm.store
    assert store.counters.supersedes == 1
    assert sorted(len(entry.tokens) for entry in store.entries()) == [120, 120]
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert _cached(warm, request_id) == 80
        _same(warm.results[request_id], await cold.alone(prompt, **ASK))
    warm.check()


@pytest.mark.parametrize("family", HYBRIDS)
async def test_eight_at_once_resume_from_one_head(core: Make, family: str) -> None:
    warm, cold = _warm(core, family), core(family)
    head = random_prompt(1, 200)
    await warm.alone([*head, 1, 2], boundaries=(Boundary(200, "head"),), **ASK)
    prompts = [[*head, i, *random_prompt(10 + i, 12)] for i in range(8)]
    ids = [
        warm.submit(p, session=f"s{i}", boundaries=_points(200, len(p) - 2), **ASK)
        for i, p in enumerate(prompts)
    ]
    await warm.run()
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert _cached(warm, request_id) == 200
        _same(warm.results[request_id], await cold.alone(prompt, **ASK))
    store = warm.store
    assert store.count(Origin.HEAD) == 1
    # The head's keys and values are there once, whoever's boundary goes on from them.
    whole = 200 // 16
    assert len({entry.table[:whole] for entry in store.entries()}) == 1
    warm.check()


@pytest.mark.parametrize("family", ["mamba2", *HYBRIDS])
async def test_eight_at_once_compute_a_beginning_once(core: Make, family: str) -> None:
    warm, cold = _warm(core, family), core(family)
    head = random_prompt(1, 300)
    prompts = [[*head, *random_prompt(9, 5), i, *random_prompt(10 + i, 12)] for i in range(8)]
    ids = [
        warm.submit(p, session=f"s{i}", boundaries=_points(300, len(p) - 2), **ASK)
        for i, p in enumerate(prompts)
    ]
    await warm.run()
    distinct = len({tuple(p[:n]) for p in prompts for n in range(1, len(p) + 1)})
    assert warm.recorder.prompt_tokens_computed <= 1.05 * distinct
    assert [_cached(warm, request_id) for request_id in ids] == [0] + [305] * 7
    for request_id, prompt in zip(ids, prompts, strict=True):
        _same(warm.results[request_id], await cold.alone(prompt, **ASK))
    store = warm.store
    assert (store.counters.lookups, store.counters.hits) == (8, 7)
    # What only the eight have in common by chance is not stored.
    assert sorted(len(e.tokens) for e in store.entries()) == [300] + [len(prompts[0]) - 2] * 8
    warm.check()


async def test_a_completion_that_the_next_turn_does_not_begin_with_is_not_kept(core: Make) -> None:
    warm = _warm(core, "qwen3_next")
    prompt, points = random_prompt(1, 60), (Boundary(57, "boundary"),)
    store = warm.store
    for keeps, kept in ((None, 0), (lambda tokens: len(tokens) - 1, 0), (len, 1)):
        await warm.alone(prompt, boundaries=points, keeps=keeps, **ASK)
        assert store.count(Origin.COMPLETION) == kept
        assert store.count(Origin.BOUNDARY) == 1
    assert warm.store.rejects.insert_rejects == 0
    warm.check()


@pytest.mark.parametrize("family", ["mamba2", "gemma3_text", "qwen3_next"])
async def test_what_the_books_say_is_what_memory_gets_back(core: Make, family: str) -> None:
    # From MLX's reserve an array may get a larger buffer than it needs.
    limit = mx.set_cache_limit(0)
    warm = _warm(core, family)
    for i in range(4):
        points = (Boundary(80, "boundary"),)
        await warm.alone(random_prompt(i, 90), session=f"s{i}", boundaries=points, **ASK)
    store = warm.store
    booked = sum(entry.state_bytes for entry in store.entries())
    gc.collect()
    before = mx.get_active_memory()
    store.flush()
    gc.collect()
    gone = before - mx.get_active_memory()
    mx.set_cache_limit(limit)
    # Blocks stay until their slabs go.
    assert gone == booked
    assert store.bytes == 0
    warm.check()


async def test_what_is_too_short_or_off_is_declined_once(core: Make) -> None:
    short = _warm(core, "mamba2", min_prefix=64)
    await short.alone(random_prompt(1, 20), **ASK)
    assert short.store.rejects.counts["prefix_too_short"] == 1
    off = _warm(core, "mamba2")
    off.store.resize(BudgetChange(snapshot_capacity_bytes=0))
    await off.alone(random_prompt(1, 20), **ASK)
    assert off.store.rejects.counts["disabled"] == 1
    assert len(off.store) == 0


async def test_a_state_too_large_for_the_store_is_refused_and_nothing_goes(core: Make) -> None:
    probe = _warm(core, "qwen3_next")
    await probe.alone(random_prompt(1, 40), boundaries=(Boundary(32, "boundary"),), **ASK)
    size = probe.store.bytes
    warm = _warm(core, "qwen3_next", snapshots=(size, 64, 7200.0))
    store = warm.store
    await warm.alone(random_prompt(1, 40), boundaries=(Boundary(32, "boundary"),), **ASK)
    (kept,) = store.entries()
    longer = random_prompt(1, 400)
    await warm.alone(longer, boundaries=(Boundary(390, "boundary"),), **ASK)
    assert store.entries() == [kept]
    assert store.counters.rejections_oversized == 1
    assert store.counters.evictions_lru == store.counters.supersedes == 0
    warm.check()


@pytest.mark.parametrize("family", ["mamba2", "qwen3_next"])
async def test_what_runs_goes_before_what_is_stored(core: Make, family: str) -> None:
    """Within one budget: entries are given up for rows, and rows make way without a trace."""
    room = 300_000
    warm, cold = _warm(core, family, kv_bytes=room), core(family)
    prompts = [random_prompt(i, 60 + 10 * i) for i in range(6)]
    store = warm.store
    ids = []
    for i, prompt in enumerate(prompts):
        points = (Boundary(len(prompt) - 3, "boundary"),)
        ids.append(warm.submit(prompt, session=f"s{i}", boundaries=points, **ASK))
    while warm.core.busy:
        await warm.step()
        assert warm.reuse.reserved_bytes() + warm.core.batch_bytes() <= room
        warm.check()
    assert store.counters.inserts + store.counters.rejections_oversized >= len(prompts)
    assert store.counters.evictions_lru == 0 or family == "qwen3_next"
    for request_id, prompt in zip(ids, prompts, strict=True):
        _same(warm.results[request_id], await cold.alone(prompt, **ASK))
    # And they are resumed from as far as they are still there.
    again = warm.submit([*prompts[-1], 1, 2], session="s5", **ASK)
    await warm.run()
    assert _cached(warm, again) == len(prompts[-1]) - 3
    _same(warm.results[again], await cold.alone([*prompts[-1], 1, 2], **ASK))
