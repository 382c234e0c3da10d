"""The pool against naive copies of what went into it, through random histories."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from block_rows import SHAPES, cut, random_rows, require_same
from mlxceld.kv.blocks import BlockAllocator
from mlxceld.kv.pool import BlockPool
from mlxceld.kv.slabs import KeysAndValues, Slab

BLOCK = 3
SLAB_BLOCKS = 4
PER_BLOCK = BLOCK * sum(shape.token_bytes for shape in SHAPES)
PICKS = st.randoms(use_true_random=False)


@dataclass
class Owner:
    """One table of blocks, how many tokens it holds, and what they must be."""

    blocks: list[int]
    tokens: int
    rows: list[KeysAndValues]


class PoolAgainstCopies(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.max_blocks = 14
        self.owners: list[Owner] = []
        self.seed = 0
        self.reserved = 0

    @initialize(first=st.sampled_from((None, 1, BLOCK, 2 * BLOCK)))
    def begin(self, first: int | None) -> None:
        self.pool = BlockPool(
            SHAPES,
            BLOCK,
            SLAB_BLOCKS * BLOCK,
            max_bytes=self.max_blocks * PER_BLOCK,
            first_slab_tokens=first,
        )

    def has_owners(self) -> bool:
        return bool(self.owners)

    @property
    def counts(self) -> Counter[int]:
        return Counter(block for owner in self.owners for block in owner.blocks)

    @rule(spans=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 16)), min_size=1, max_size=4))
    def seal(self, spans) -> None:
        for start, tokens in spans:
            self.seal_one(start, tokens)

    def seal_one(self, start: int, tokens: int) -> None:
        self.seed += 1
        rows = random_rows(self.seed, start + tokens + self.seed % 2)
        stats, live = self.pool.stats(), len(self.counts)
        count = -(-tokens // BLOCK)
        blocks = self.pool.seal(rows, start, start + tokens)
        if live + count > self.max_blocks:
            assert blocks is None
            assert self.pool.stats() == stats
            return
        assert blocks is not None
        assert len(blocks) == count
        assert not self.counts.keys() & set(blocks)
        if blocks:
            want = cut(rows, start, start + tokens)
            mx.eval(want)
            self.owners.append(Owner(blocks, tokens, want))

    @precondition(has_owners)
    @rule(pick=PICKS)
    def share(self, pick) -> None:
        owner = pick.choice(self.owners)
        tokens = pick.randint(1, owner.tokens)
        blocks = owner.blocks[: -(-tokens // BLOCK)]
        self.pool.retain(blocks)
        self.owners.append(Owner(list(blocks), tokens, cut(owner.rows, 0, tokens)))

    @precondition(has_owners)
    @rule(pick=PICKS)
    def release(self, pick) -> None:
        for _ in range(pick.randint(1, len(self.owners))):
            self.release_one(pick)

    def release_one(self, pick: random.Random) -> None:
        owner = self.owners.pop(pick.randrange(len(self.owners)))
        # Sometimes only the end of it, so that holes of every size appear.
        keep = pick.choice([0, 0, len(owner.blocks) // 2])
        freed = self.pool.release(owner.blocks[keep:])
        if keep:
            kept = Owner(owner.blocks[:keep], keep * BLOCK, cut(owner.rows, 0, keep * BLOCK))
            self.owners.append(kept)
        assert set(freed) == set(owner.blocks[keep:]) - self.counts.keys()

    @rule()
    def give_back(self) -> None:
        before = self.pool.stats().bytes_reserved
        freed = self.pool.give_back()
        assert self.pool.stats().bytes_reserved == before - freed
        self.require_one_spare()

    @rule(max_blocks=st.integers(6, 24), odd=st.integers(0, PER_BLOCK - 1))
    def resize(self, max_blocks, odd) -> None:
        self.max_blocks = max_blocks
        self.pool.resize(max_blocks * PER_BLOCK + odd)
        assert self.pool.stats().block_budget == max_blocks
        self.require_one_spare()

    @rule(pick=PICKS, tokens=st.integers(1, 2 * BLOCK))
    def compact(self, pick, tokens) -> None:
        for _ in range(4):
            self.seal_one(0, tokens)
        while len(self.owners) > 3:
            self.release_one(pick)
        moves = self.pool.compact()
        for owner in self.owners:
            owner.blocks = [moves.get(block, block) for block in owner.blocks]
        self.pool.give_back()
        self.require_one_spare()

    def require_one_spare(self) -> None:
        used = {block // SLAB_BLOCKS for block in self.counts}
        stats = self.pool.stats()
        over = stats.blocks_allocated > self.max_blocks
        spare = 0 if over else SLAB_BLOCKS
        assert stats.blocks_allocated <= len(used) * SLAB_BLOCKS + spare

    @invariant()
    def every_owner_reads_what_it_sealed(self) -> None:
        for owner in self.owners:
            require_same(self.pool.read(owner.blocks, owner.tokens), owner.rows)

    @invariant()
    def the_books_balance(self) -> None:
        self.pool.check([owner.blocks for owner in self.owners])
        stats = self.pool.stats()
        counts = self.counts
        assert stats.blocks_free + stats.blocks_live == stats.blocks_allocated
        assert stats.blocks_live == len(counts)
        assert stats.blocks_shared == sum(count > 1 for count in counts.values())
        assert stats.bytes_in_use == len(counts) * PER_BLOCK
        assert stats.bytes_reserved == stats.blocks_allocated * PER_BLOCK
        # Nothing grows beyond the budget; what was there before it shrank may still be there.
        assert stats.bytes_reserved <= max(self.max_blocks * PER_BLOCK, self.reserved)
        self.reserved = stats.bytes_reserved


RUNS = settings(max_examples=80, stateful_step_count=30)
PoolAgainstCopies.TestCase.settings = RUNS
TestPoolAgainstCopies = PoolAgainstCopies.TestCase


def _retain_nothing(self: BlockAllocator, blocks: Any) -> None:
    pass


def _without_last_token(write: Callable[..., None]) -> Callable[..., None]:
    def broken(self: Slab, layer: int, start: int, keys: mx.array, values: mx.array) -> None:
        write(self, layer, start, keys[:, :-1], values[:, :-1])

    return broken


def _one_token_off(view: Callable[..., KeysAndValues]) -> Callable[..., KeysAndValues]:
    def broken(self: Slab, layer: int, start: int, stop: int) -> KeysAndValues:
        shift = 1 if start else 0
        return view(self, layer, start - shift, stop - shift)

    return broken


@pytest.mark.parametrize(
    ("owner", "name", "broken", "text"),
    [
        (BlockAllocator, "retain", _retain_nothing, "1 owners counted, 2 in the tables"),
        (Slab, "write", _without_last_token(Slab.write), "other bits"),
        (Slab, "view", _one_token_off(Slab.view), "other bits"),
        (BlockPool, "_copy_layer", lambda *_: None, "other bits"),
    ],
    ids=["refcount not raised", "last token dropped", "read one off", "compaction without data"],
)
def test_the_machine_finds(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: Any, text: str
) -> None:
    monkeypatch.setattr(owner, name, broken)
    only_once = settings(RUNS, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises(AssertionError, match=text):
        run_state_machine_as_test(PoolAgainstCopies, settings=only_once)
