"""Counts what a piece of engine work does: tokens, steps, evaluations, blocks and copied bytes.

Nothing here looks at a clock. What the engine and the pool count themselves is read off them; the
rest is counted at the few functions that all of it goes through.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx
import pytest

from engine_harness import CoreHarness
from mlxceld.engine import snapshot_reuse
from mlxceld.engine.batch import DecodeBatch, Step
from mlxceld.kv import paged_rows, pool, row_caches, shared_attention, shared_prefix
from mlxceld.kv.blocks import BlockAllocator
from mlxceld.kv.slabs import Slab
from mlxceld.models.caches import chunked, recurrent, windowed
from mlxceld.prompt_cache.block_store import BlockStore
from mlxceld.prompt_cache.dense_store import DenseStore
from mlxceld.prompt_cache.snapshot_store import SnapshotStore

_READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__array__")
"""How Python gets at an array's values, and waits for them."""


@dataclass
class Work:
    """What was done. Bytes are those of the arrays, tokens and positions are of all sequences.

    ``tokens_distinct`` is the least that can be computed: the new nodes that the prompts add to a
    tree of all prompts so far. ``tokens_computed`` and ``tokens_adopted`` add up to the prompts.
    ``positions`` is what went through the model, padding and generated tokens included.
    ``overlapped_steps`` are the decode steps that were started before the tokens of the step before
    were read. ``evals`` are waited for, ``async_evals`` are not, ``reads`` take values out of
    arrays. ``lookups`` are the walks through a store's index that look for what a prompt can adopt.
    ``pool_written`` and ``pool_read`` are bytes copied into and out of the pool's blocks,
    ``rows_copied`` those of rows joined, split or merged outside of it, ``states_copied`` those
    of snapshots taken. ``live_blocks`` is the most that had an owner at once.
    """

    requests: int = 0
    tokens_distinct: int = 0
    tokens_computed: int = 0
    tokens_adopted: int = 0
    tokens_generated: int = 0
    positions: int = 0
    prefill_chunks: int = 0
    decode_steps: int = 0
    overlapped_steps: int = 0
    evals: int = 0
    async_evals: int = 0
    reads: int = 0
    lookups: int = 0
    blocks_allocated: int = 0
    live_blocks: int = 0
    pool_written: int = 0
    pool_read: int = 0
    rows_copied: int = 0
    states_copied: int = 0

    def as_row(self) -> dict[str, int]:
        """The counts by name, in their order."""
        return asdict(self)


class PromptTree:
    """A tree of all prompts so far, to tell how many of a prompt's tokens are new."""

    def __init__(self) -> None:
        self._root: dict[int, Any] = {}

    def add(self, prompt: list[int]) -> int:
        """Add a prompt; returns its new nodes, 1 for an exact repeat: its last token."""
        new, node = 0, self._root
        for token in prompt:
            if token not in node:
                node[token] = {}
                new += 1
            node = node[token]
        return max(1, new)


@contextmanager
def counted(harness: CoreHarness) -> Iterator[Work]:
    """Count what happens within; the counts are complete at the end.

    What ran before must have come to its end, and everything must come to its end within.
    """
    assert not harness.core.busy, "what was running would be counted in part"
    work = Work()
    recorder, before = harness.recorder, _recorded(harness)
    with pytest.MonkeyPatch.context() as patch:
        _count_evaluations(patch, work)
        _count_positions(patch, work, type(harness.model.module))
        _count_overlap(patch, work)
        _count_lookups(patch, work)
        _count_blocks(patch, work)
        _count_copies(patch, work)
        yield work
    assert not harness.core.busy, "what is running has been counted in part"
    after = _recorded(harness)
    work.requests = recorder.ended - before.requests
    work.tokens_computed = after.tokens_computed - before.tokens_computed
    work.tokens_adopted = after.tokens_adopted - before.tokens_adopted
    work.tokens_generated = after.tokens_generated - before.tokens_generated
    work.decode_steps = after.decode_steps - before.decode_steps
    work.prefill_chunks = after.prefill_chunks - before.prefill_chunks


def _recorded(harness: CoreHarness) -> Work:
    """What the engine itself has counted so far."""
    recorder = harness.recorder
    decode_steps = recorder.histograms()["batch_size"].count
    return Work(
        requests=recorder.ended,
        tokens_computed=recorder.prompt_tokens_computed + recorder.background_tokens_computed,
        tokens_adopted=recorder.prompt_tokens_reused,
        tokens_generated=recorder.tokens_generated,
        decode_steps=decode_steps,
        prefill_chunks=recorder.steps - decode_steps,
    )


def _after(
    patch: pytest.MonkeyPatch, owner: Any, name: str, note: Callable[[Any, tuple[Any, ...]], None]
) -> None:
    """Have ``note(result, arguments)`` called after each call of ``owner.name`` in this thread.

    Engines that other tests of the process keep may be at work in threads of their own.
    """
    original, counted_thread = getattr(owner, name), threading.get_ident()

    def call(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        if threading.get_ident() == counted_thread:
            note(result, arguments)
        return result

    patch.setattr(owner, name, call)


def _count_evaluations(patch: pytest.MonkeyPatch, work: Work) -> None:
    def note_eval(*_: object) -> None:
        work.evals += 1

    def note_async_eval(*_: object) -> None:
        work.async_evals += 1

    def note_read(*_: object) -> None:
        work.reads += 1

    _after(patch, mx, "eval", note_eval)
    _after(patch, mx, "async_eval", note_async_eval)
    for name in _READS:
        _after(patch, mx.array, name, note_read)


def _count_positions(patch: pytest.MonkeyPatch, work: Work, model: type) -> None:
    def note(_: object, arguments: tuple[Any, ...]) -> None:
        work.positions += arguments[1].size

    _after(patch, model, "__call__", note)


def _count_overlap(patch: pytest.MonkeyPatch, work: Work) -> None:
    unread = 0

    def note_launch(*_: object) -> None:
        nonlocal unread
        work.overlapped_steps += unread > 0
        unread += 1

    def note_wait(*_: object) -> None:
        nonlocal unread
        unread -= 1

    _after(patch, DecodeBatch, "launch", note_launch)
    _after(patch, Step, "wait", note_wait)


def _count_lookups(patch: pytest.MonkeyPatch, work: Work) -> None:
    def note(*_: object) -> None:
        work.lookups += 1

    for store in (BlockStore, SnapshotStore, DenseStore):
        _after(patch, store, "find", note)


def _count_blocks(patch: pytest.MonkeyPatch, work: Work) -> None:
    def note(blocks: list[int] | None, arguments: tuple[Any, ...]) -> None:
        work.blocks_allocated += len(blocks or ())
        work.live_blocks = max(work.live_blocks, arguments[0].live)

    _after(patch, BlockAllocator, "allocate", note)


def _count_copies(patch: pytest.MonkeyPatch, work: Work) -> None:
    def note_written(_: object, arguments: tuple[Any, ...]) -> None:
        keys, values = arguments[3:5]
        work.pool_written += keys.nbytes + values.nbytes

    def note_read(copy: mx.array, _: object) -> None:
        work.pool_read += copy.nbytes

    def note_gathered(copies: tuple[mx.array, mx.array], _: object) -> None:
        work.pool_read += sum(copy.nbytes for copy in copies)

    def note_tail(copy: mx.array, _: object) -> None:
        work.rows_copied += copy.nbytes

    def note_rows(caches: row_caches.Caches, _: object) -> None:
        work.rows_copied += row_caches.nbytes(caches)

    def note_first(_: object, arguments: tuple[Any, ...]) -> None:
        work.rows_copied += row_caches.nbytes(arguments[0])

    def note_state(copy: mx.array, _: object) -> None:
        work.states_copied += copy.nbytes

    _after(patch, Slab, "write", note_written)
    _after(patch, pool, "copied", note_read)
    _after(patch, shared_prefix.SharedPrefix, "gathered", note_gathered)
    _after(patch, paged_rows, "copied", note_tail)
    _after(patch, paged_rows, "joined", note_rows)
    for name in ("merge", "extract"):
        _after(patch, row_caches, name, note_rows)
    for name in ("extend", "keep_rows"):
        _after(patch, row_caches, name, note_first)
    _after(patch, shared_attention, "merge", note_rows)
    for module in (chunked, recurrent, windowed, snapshot_reuse):
        _after(patch, module, "copied", note_state)
