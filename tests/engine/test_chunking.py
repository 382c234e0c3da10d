"""How large a prefill chunk may be."""

from __future__ import annotations

from mlxceld.engine.chunking import ChunkSize


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


def test_a_ceiling_below_the_floor_is_kept() -> None:
    chunks = ChunkSize(8)
    chunks.record(8, 1.0, streams_running=True)
    assert chunks.size(streams_running=True) == 8
