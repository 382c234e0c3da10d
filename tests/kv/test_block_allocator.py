"""Blocks are counted, found and given back without a tensor in sight."""

from __future__ import annotations

import pytest

from mlxceld.kv.blocks import BlockAllocator, BlockError
from mlxceld.kv.free_runs import Run


def make(slabs: int = 2, *, slab_blocks: int = 8, max_blocks: int = 100) -> BlockAllocator:
    allocator = BlockAllocator(slab_blocks, max_blocks)
    for _ in range(slabs):
        allocator.add_slab()
    return allocator


def state(allocator: BlockAllocator) -> tuple[object, ...]:
    """All that can be seen of an allocator."""
    blocks = {block: allocator.refcount(block) for block in range(-8, 64)}
    counters = (allocator.allocated, allocator.live, allocator.free, allocator.shared)
    return blocks, counters, sorted(allocator.removable_slabs())


def some(allocator: BlockAllocator, count: int) -> list[int]:
    blocks = allocator.allocate(count)
    assert blocks is not None
    return blocks


def test_counts_follow_owners() -> None:
    allocator = make()
    blocks = some(allocator, 3)
    assert (allocator.allocated, allocator.live, allocator.free) == (16, 3, 13)
    allocator.retain(blocks[:2])
    assert [allocator.refcount(b) for b in blocks] == [2, 2, 1]
    assert allocator.shared == 2
    assert allocator.release(blocks) == [blocks[2]]
    assert allocator.shared == 0
    assert allocator.release(blocks[:2]) == blocks[:2]
    assert (allocator.live, allocator.free) == (0, 16)
    allocator.check([])


def test_an_id_may_be_given_several_times() -> None:
    allocator = make()
    (block,) = some(allocator, 1)
    allocator.retain([block, block])
    assert allocator.refcount(block) == 3
    assert allocator.shared == 1
    assert allocator.release([block] * 3) == [block]
    assert allocator.shared == 0


def test_one_run_in_the_fullest_slab_that_holds_it() -> None:
    allocator = make(3)
    first, second = some(allocator, 8), some(allocator, 8)
    assert (first, second) == (list(range(8)), list(range(8, 16)))
    allocator.release([1, 2, 3, 5, 6])  # free runs of 3 and 2
    allocator.release([8, 9, 10, 11, 12, 14])  # of 5 and 1
    assert allocator.allocate(2) == [1, 2]  # first fit, though 5, 6 fits better
    assert allocator.allocate(3) == [8, 9, 10]
    assert allocator.allocate(6) == list(range(16, 22))


def test_as_few_runs_as_possible() -> None:
    allocator = make(2)
    some(allocator, 16)
    allocator.release([0, 2, 3, 4, 6, 7])  # 1, 3, 2
    allocator.release([9, 11, 12, 13, 14])  # 1, 4
    assert allocator.allocate(7) == [11, 12, 13, 14, 2, 3, 4]
    assert allocator.allocate(4) == [6, 7, 9, 0]
    assert allocator.allocate(1) is None


def test_more_than_a_slab_takes_whole_slabs() -> None:
    allocator = make(3)
    runs = allocator.runs(some(allocator, 20))
    assert sorted(run.length for run in runs) == [4, 8, 8]


@pytest.mark.parametrize("count", [9, 100])
def test_what_does_not_fit_has_no_effect(count: int) -> None:
    allocator = make(2, max_blocks=12)
    some(allocator, 4)
    before = state(allocator)
    assert allocator.allocate(count) is None
    assert state(allocator) == before
    assert allocator.allocate(0) == []


def test_a_budget_below_what_lives_refuses_until_enough_is_released() -> None:
    allocator = make()
    blocks = some(allocator, 6)
    allocator.max_blocks = 4
    assert allocator.allocate(1) is None
    allocator.release(blocks[:2])
    assert allocator.allocate(1) is None
    allocator.release(blocks[2:3])
    assert allocator.allocate(1) == [0]


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ([0, 5], "block 5: released 1 times with 0 owners"),
        ([1, 0, 0], "block 0: released 2 times with 1 owners"),
        ([0, 99], "there is no slab 12"),
        ([0, -1], "there is no slab -1"),
    ],
)
def test_a_wrong_release_changes_nothing(blocks: list[int], text: str) -> None:
    allocator = make()
    some(allocator, 2)
    before = state(allocator)
    with pytest.raises(BlockError, match=text):
        allocator.release(blocks)
    assert state(allocator) == before
    allocator.check([[0, 1]])


def test_a_wrong_retain_changes_nothing() -> None:
    allocator = make()
    some(allocator, 2)
    before = state(allocator)
    with pytest.raises(BlockError, match="block 5: has no owner"):
        allocator.retain([0, 5])
    assert state(allocator) == before


def test_slabs_come_and_go() -> None:
    allocator = make(3)
    blocks = some(allocator, 10)
    assert allocator.runs(blocks) == [Run(0, 0, 8), Run(1, 0, 2)]
    assert allocator.removable_slabs() == [2]
    with pytest.raises(BlockError, match="slab 1: 2 of 8 blocks have owners"):
        allocator.remove_slab(1)
    with pytest.raises(BlockError, match="slab 7: unknown"):
        allocator.remove_slab(7)
    allocator.release(list(range(8)))
    allocator.remove_slab(0)
    assert (allocator.allocated, allocator.live, allocator.free) == (16, 2, 14)
    assert [allocator.refcount(b) for b in (8, 9)] == [1, 1]
    with pytest.raises(BlockError, match="no slab 0"):
        allocator.release([0])
    assert allocator.add_slab() == 0
    assert allocator.add_slab() == 3
    allocator.check([[8, 9]])


def test_a_small_slab_gives_only_what_it_has() -> None:
    allocator = make(0)
    assert allocator.add_slab(3) == 0
    assert allocator.allocate(4) is None
    assert allocator.allocate(3) == [0, 1, 2]
    with pytest.raises(BlockError, match="slab 0, slot 3 of 3"):
        allocator.retain([3])
    with pytest.raises(ValueError, match="slots: expected 1 to 8, got 9"):
        allocator.add_slab(9)


def test_runs_end_at_the_edge_of_a_slab_and_keep_the_order() -> None:
    allocator = make()
    assert allocator.runs([6, 7, 8, 9, 3, 2]) == [
        Run(0, 6, 2),
        Run(1, 0, 2),
        Run(0, 3, 1),
        Run(0, 2, 1),
    ]


def test_compaction_empties_the_emptiest_slab_and_keeps_neighbours_together() -> None:
    allocator = make(3)
    some(allocator, 24)
    allocator.release([2, 3, 4, 7, 8, 15, *range(16, 20), 22, 23])
    allocator.retain([20])
    plan = allocator.plan_compaction()
    assert plan == {20: 2, 21: 3}
    allocator.move(plan)
    assert allocator.refcount(2) == 2
    assert allocator.removable_slabs() == [2]
    allocator.check([[0, 1, 2, 3, 5, 6, *range(9, 15)], [2]])
    assert allocator.plan_compaction() == {}


def test_a_move_can_be_taken_back() -> None:
    allocator = make(2)
    some(allocator, 16)
    allocator.release([0, 1, 2, *range(9, 16)])
    before = state(allocator)
    plan = allocator.plan_compaction()
    allocator.move(plan)
    assert state(allocator) != before
    allocator.move({new: old for old, new in plan.items()})
    assert state(allocator) == before


@pytest.mark.parametrize(
    ("moves", "text"),
    [
        ({0: 1}, "block 0: cannot move to 1"),
        ({0: 5, 1: 5}, "same new id"),
        ({5: 6}, "block 5: has no owner"),
        ({0: 16}, "there is no slab 2"),
    ],
)
def test_a_wrong_move_changes_nothing(moves: dict[int, int], text: str) -> None:
    allocator = make()
    some(allocator, 2)
    before = state(allocator)
    with pytest.raises(BlockError, match=text):
        allocator.move(moves)
    assert state(allocator) == before


def test_the_check_sees_an_owner_that_was_not_counted() -> None:
    allocator = make()
    blocks = some(allocator, 2)
    with pytest.raises(AssertionError, match="block 1: 1 owners counted, 2 in the tables"):
        allocator.check([blocks, blocks[1:]])
    with pytest.raises(AssertionError, match="block 0: 1 owners counted, 0 in the tables"):
        allocator.check([blocks[1:]])
    with pytest.raises(AssertionError, match="block 9: 0 owners counted, 1 in the tables"):
        allocator.check([blocks, [9]])


@pytest.mark.parametrize(
    ("field", "value"), [("slab_blocks", 0), ("max_blocks", -1)], ids=["slab_blocks", "max_blocks"]
)
def test_bad_sizes_are_named(field: str, value: int) -> None:
    sizes = {"slab_blocks": 8, "max_blocks": 8} | {field: value}
    with pytest.raises(ValueError, match=f"{field}: expected .* got {value}"):
        BlockAllocator(**sizes)
