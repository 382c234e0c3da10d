"""Every row of the manual's table of refusals, made to happen: that counter moves, and no other."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from engine_harness import CoreHarness, random_prompt
from mlxceld.engine import whole_reuse
from mlxceld.engine.paged_reuse import PagedReuse
from mlxceld.kv import row_caches
from mlxceld.kv.pool import BlockPool
from mlxceld.prompt_cache.rejects import RejectReason

Make = Callable[..., CoreHarness]
Patch = pytest.MonkeyPatch
# The harness that was made, and the context length that has to be on record.
Scenario = Callable[[Make, Patch], Awaitable[tuple[CoreHarness, int]]]

MANUAL = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
P50 = random_prompt(1, 50)


def _fail(*_: object, **__: object) -> None:
    raise RuntimeError("injected")


async def _off(core: Make, _: Patch) -> tuple[CoreHarness, int]:
    harness = core(cache=False, backend="paged")
    await harness.alone(P50, max_tokens=4, ignore_eos=True)
    return harness, 53


async def _short(core: Make, _: Patch) -> tuple[CoreHarness, int]:
    harness = core(cache=True, backend="paged", min_prefix=20)
    await harness.alone(P50[:10], max_tokens=4, ignore_eos=True)
    return harness, 13


async def _oversized(core: Make, _: Patch) -> tuple[CoreHarness, int]:
    harness = core(cache=True, backend="dense", capacity_bytes=1000)
    await harness.alone(P50, max_tokens=4, ignore_eos=True)
    return harness, 53


async def _nothing(core: Make, _: Patch) -> tuple[CoreHarness, int]:
    harness = core(cache=True, backend="paged")
    harness.core.cancel(harness.submit(P50, max_tokens=4))
    await harness.run()
    return harness, 0


async def _no_caches(core: Make, patch: Patch) -> tuple[CoreHarness, int]:
    harness = core(cache=True, backend="paged")
    leave = harness.core._batch.leave
    patch.setattr(harness.core._batch, "leave", lambda rows, _: leave(rows, lambda _: False))
    await harness.alone(P50, max_tokens=4, ignore_eos=True)
    return harness, 53


async def _no_blocks(core: Make, patch: Patch) -> tuple[CoreHarness, int]:
    harness = core(cache=True, backend="paged")
    assert isinstance(harness.reuse, PagedReuse)
    patch.setattr(harness.reuse._pool, "seal", lambda *_: None)
    await harness.alone(P50, max_tokens=4, ignore_eos=True)
    return harness, 53


async def _seal_fails(core: Make, patch: Patch) -> tuple[CoreHarness, int]:
    harness = core(cache=True, backend="paged")
    assert isinstance(harness.reuse, PagedReuse)
    patch.setattr(harness.reuse._pool, "seal", _fail)
    await harness.alone(P50, max_tokens=4, ignore_eos=True)
    return harness, 53


async def _eval_fails(core: Make, patch: Patch) -> tuple[CoreHarness, int]:
    harness = core(cache=True, backend="dense")
    patch.setattr(whole_reuse, "mx", SimpleNamespace(eval=_fail))
    await harness.alone(P50, max_tokens=4, ignore_eos=True)
    return harness, 53


async def _partial(core: Make, **options: Any) -> tuple[CoreHarness, int]:
    harness = core(cache=True, **options)
    await harness.alone(P50, max_tokens=4, ignore_eos=True)
    prompt = [*P50[:40], (P50[40] + 1) % 256, *random_prompt(2, 20)]
    await harness.alone(prompt, max_tokens=4, ignore_eos=True)
    return harness, 40


async def _partial_dense(core: Make, _: Patch) -> tuple[CoreHarness, int]:
    return await _partial(core, backend="dense")


async def _partial_apc_off(core: Make, _: Patch) -> tuple[CoreHarness, int]:
    return await _partial(core, backend="paged", apc={"enabled": False})


async def _read_fails(core: Make, patch: Patch) -> tuple[CoreHarness, int]:
    harness = core(cache=True, backend="paged")
    assert isinstance(harness.reuse, PagedReuse)
    await harness.alone(P50, max_tokens=4, ignore_eos=True)
    patch.setattr(harness.reuse._pool, "read", _fail)
    await harness.alone(P50, max_tokens=4, ignore_eos=True)
    return harness, 49


async def _trim_fails(core: Make, patch: Patch) -> tuple[CoreHarness, int]:
    harness = core(cache=True, backend="dense")
    output = (await harness.alone(P50, max_tokens=4, ignore_eos=True)).tokens
    patch.setattr(row_caches, "trim", _fail)
    await harness.alone([*P50, *output[:-1]], max_tokens=4, ignore_eos=True)
    return harness, 52


async def _floor(core: Make, patch: Patch) -> tuple[CoreHarness, int]:
    harness = core(cache=True, backend="paged")
    await harness.alone(P50, max_tokens=4, ignore_eos=True)
    patch.setattr(BlockPool, "room", lambda _: 0)
    await harness.alone([*P50[:10], 256], max_tokens=4, ignore_eos=True)
    return harness, 10


SITES: dict[str, Scenario] = {
    "the store is off": _off,
    "fewer tokens than `prompt_cache.min_prefix`": _short,
    "more than the whole store may hold": _oversized,
    "nothing was computed: it was cancelled, or ran out of time, before": _nothing,
    "it ended without its caches": _no_caches,
    "running requests hold the blocks that are needed": _no_blocks,
    "the block pool failed to store them": _seal_fails,
    "its caches could not be evaluated (whole prefixes)": _eval_fails,
    "a partial match where whole prefixes are kept (`kv_backend: dense`)": _partial_dense,
    "a partial match with `apc.enabled` off": _partial_apc_off,
    "the blocks could not be read": _read_fails,
    "the last token of a whole prefix could not be cut off": _trim_fails,
    "no room to copy the partial block, and whole blocks alone are fewer than `min_prefix`": _floor,
}


def _rows() -> list[tuple[str, ...]]:
    text = MANUAL.read_text().partition("## Where something is declined")[2].partition("\n## ")[0]
    rows = [tuple(re.split(r" \| ", line.strip("| "))) for line in text.splitlines() if "|" in line]
    return [row for row in rows[2:] if len(row) == 5]


def test_the_manual_has_every_site_and_every_reason() -> None:
    assert [row[0] for row in _rows()] == list(SITES)
    assert {row[2].strip("`") for row in _rows()} == set(RejectReason)


@pytest.mark.parametrize("row", _rows(), ids=lambda row: row[0])
async def test_a_site_records_one_reason_once(
    core: Make, monkeypatch: Patch, row: tuple[str, ...]
) -> None:
    site, direction, reason, seq_text, length_text = row
    with monkeypatch.context() as patch:
        harness, context_len = await SITES[site](core, patch)
    rejects = harness.store.rejects
    counted = {str(name): n for name, n in rejects.counts.items() if n}
    assert counted == {reason.strip("`"): 1}
    adoption = direction == "adoption"
    seq_id = 2 if adoption else 1
    last = rejects.last
    assert last is not None
    assert (str(last.reason), last.seq_id, last.context_len) == (
        reason.strip("`"),
        seq_id,
        context_len,
    )
    assert rejects.newest == {last.reason: last}
    assert rejects.insert_rejects == (not adoption)
    assert seq_text == ("the adopter's" if adoption else "the donor's")
    assert length_text == "0" if context_len == 0 else "tokens" in length_text
    events = [event for event in harness.trace.tail(256) if event.event == "reject"]
    assert [(e.reason, e.seq_id, e.context_len, e.matched_len) for e in events] == [
        (reason.strip("`"), seq_id, context_len, context_len if adoption else None)
    ]
    decided = rejects.outcomes.take(seq_id)
    assert (decided.adopt_reject, decided.donate_reject) == (
        (reason.strip("`"), None) if adoption else (None, reason.strip("`"))
    )
    counters = harness.store.counters
    assert counters.rejections_oversized == rejects.counts[RejectReason.OVERSIZED]
    harness.check()
    mx.clear_cache()


async def test_a_plain_miss_is_no_refusal(core: Make) -> None:
    for backend in ("dense", "paged"):
        harness = core(cache=True, backend=backend)
        for seed in (1, 2):
            await harness.alone(random_prompt(seed, 50), max_tokens=4, ignore_eos=True)
        assert harness.store.counters.misses == 2
        assert harness.store.rejects.last is None


async def test_a_request_is_refused_once_in_each_direction(core: Make) -> None:
    harness = core(cache=True, backend="dense")
    for _ in range(2):
        harness.store.reject(
            RejectReason.MODE_MISMATCH, session="s", seq_id=9, context_len=5, donation=False
        )
        harness.store.reject(RejectReason.OVERSIZED, session="s", seq_id=9, context_len=6)
    counts = harness.store.rejects.counts
    assert sum(counts.values()) == 2
    assert harness.store.counters.rejections_oversized == 1
    assert len(harness.trace.tail(256)) == 2
