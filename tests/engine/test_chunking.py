"""How large a prefill chunk may be."""

from __future__ import annotations

import pytest

from mlxceld.engine.chunking import ChunkSize, part_of


def test_the_ceiling_holds_while_nobody_waits() -> None:
    chunks = ChunkSize(512)
    chunks.record(512, 9.0, streams_running=False)
    assert chunks.size(streams_running=False) == 512
    assert chunks.size(streams_running=True) == 512
    assert chunks.longest_seconds == 0.0


def test_a_slow_chunk_beside_a_stream_is_halved_down_to_a_floor() -> None:
    chunks = ChunkSize(512)
    seen = []
    for _ in range(8):
        size = chunks.size(streams_running=True)
        seen.append(size)
        chunks.record(size, 1.0, streams_running=True)
    assert seen == [512, 256, 128, 64, 32, 32, 32, 32]
    assert chunks.size(streams_running=False) == 512
    assert chunks.longest_seconds == 1.0


def test_quick_chunks_grow_back_to_the_ceiling() -> None:
    chunks = ChunkSize(128)
    for _ in range(2):
        chunks.record(chunks.size(streams_running=True), 1.0, streams_running=True)
    for _ in range(3):
        chunks.record(chunks.size(streams_running=True), 0.01, streams_running=True)
    assert chunks.size(streams_running=True) == 128


def test_a_small_rest_teaches_nothing() -> None:
    chunks = ChunkSize(512)
    chunks.record(10, 1.0, streams_running=True)
    chunks.record(10, 0.001, streams_running=True)
    assert chunks.size(streams_running=True) == 512


@pytest.mark.parametrize("begin", [32, 512])
def test_it_settles_where_a_chunk_is_not_slow(begin: int) -> None:
    """The machine of this test takes 65 ms a chunk and 1.5 ms a token: 123 tokens in 250 ms."""
    chunks = ChunkSize(512)
    while chunks.size(streams_running=True) > begin:
        chunks.record(chunks.size(streams_running=True), 9.0, streams_running=True)
    sizes = []
    for _ in range(30):
        sizes.append(chunks.size(streams_running=True))
        chunks.record(sizes[-1], 0.065 + 0.0015 * sizes[-1], streams_running=True)
    assert all(100 <= size <= 124 for size in sizes[10:])
    # A prompt of 206 tokens is computed in two, not three, parts.
    assert part_of(206, sizes[-1]) == 103


@pytest.mark.parametrize(
    ("tokens", "most", "parts"),
    [(0, 5, []), (1, 512, [1]), (512, 512, [512]), (513, 512, [257, 256]), (206, 69, [69, 69, 68])],
)
def test_a_prompt_is_cut_into_equal_parts(tokens: int, most: int, parts: list[int]) -> None:
    found = []
    while tokens:
        found.append(part_of(tokens, most))
        tokens -= found[-1]
    assert found == parts
    assert part_of(0, most) == 0


def test_a_ceiling_below_the_floor_is_kept() -> None:
    chunks = ChunkSize(8)
    chunks.record(8, 1.0, streams_running=True)
    assert chunks.size(streams_running=True) == 8


def test_fixed_chunks_are_full_but_for_the_last() -> None:
    chunks = ChunkSize(100, fixed=True)
    chunks.record(100, 60.0, streams_running=True)
    assert chunks.size(streams_running=True) == 100
    assert [chunks.part_of(left, 100) for left in (250, 150, 50)] == [100, 100, 50]
    assert ChunkSize(100).part_of(250, 100) == 84
