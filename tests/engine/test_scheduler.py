"""Who is admitted, and whose prompt is computed next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlxceld.engine.request import GenerationRequest, SamplingParams
from mlxceld.engine.scheduler import Scheduler
from mlxceld.engine.sequence import Phase, Sequence


def _sequence(length: int, number: int = 0, prefilled: int = 0) -> Sequence:
    request = GenerationRequest(f"r{number}", [1] * length, SamplingParams())
    return Sequence(
        seq_id=number,
        request=request,
        stream=None,  # type: ignore[arg-type] - the scheduler never looks at it
        submitted_at=0.0,
        deadline=None,
        max_tokens=1,
        seed=0,
        prompt=list(request.tokens),
        prefilled=prefilled,
    )


def _scheduler(lengths: list[int], *, padded: bool = True, places: int = 64) -> Scheduler:
    scheduler = Scheduler(places, padded_prefill=padded)
    for number, length in enumerate(lengths):
        scheduler.add(_sequence(length, number))
    _admit(scheduler, 0)
    return scheduler


def _admit(scheduler: Scheduler, decoding: int) -> list[Sequence]:
    admitted = []
    while scheduler.next_in_line(decoding) is not None:
        admitted.append(scheduler.admit())
    return admitted


def test_admission_is_in_order_and_stops_at_the_limit() -> None:
    scheduler = Scheduler(3, padded_prefill=True)
    sequences = [_sequence(4, i) for i in range(5)]
    for sequence in sequences:
        scheduler.add(sequence)
    assert _admit(scheduler, 1) == sequences[:2]
    assert [s.phase for s in sequences] == [Phase.PREFILL] * 2 + [Phase.WAITING] * 3
    assert _admit(scheduler, 1) == []
    scheduler.remove(sequences[0])
    scheduler.remove(sequences[3])
    assert _admit(scheduler, 1) == [sequences[2]]
    assert scheduler.waiting == 1


def test_short_prompts_of_like_length_go_together() -> None:
    scheduler = _scheduler([11, 9, 13, 12])
    assert [len(s.prompt) for s in scheduler.next_group(64)] == [11, 9, 13, 12]


def test_wasteful_padding_is_not_grouped() -> None:
    scheduler = _scheduler([5, 60, 6])
    assert [len(s.prompt) for s in scheduler.next_group(512)] == [5, 6]


def test_unpadded_models_group_equal_lengths_only() -> None:
    scheduler = _scheduler([9, 10, 9, 9], padded=False)
    assert [s.seq_id for s in scheduler.next_group(64)] == [0, 2, 3]


def test_long_and_short_prompts_take_turns() -> None:
    scheduler = _scheduler([1000, 1000, 10, 500])
    turns = [[s.seq_id for s in scheduler.next_group(64)] for _ in range(3)]
    assert turns == [[2], [0], [2]]


def test_a_row_with_adopted_tokens_goes_alone() -> None:
    scheduler = Scheduler(8, padded_prefill=True)
    adopted, fresh = _sequence(30, 0, prefilled=20), _sequence(9, 1)
    scheduler.add(adopted)
    scheduler.add(fresh)
    _admit(scheduler, 0)
    assert scheduler.next_group(64) == [adopted]


def test_a_prompt_of_one_token_needs_no_chunk() -> None:
    scheduler = _scheduler([1, 9])
    group = scheduler.next_group(64)
    assert [s.prefill_left for s in group] == [0]


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=20),
    st.integers(8, 128),
    st.booleans(),
)
def test_everything_is_prefilled_within_bounds(
    lengths: list[int], chunk: int, padded: bool
) -> None:
    scheduler = _scheduler(lengths, padded=padded)
    rounds = 0
    while scheduler.prefilling:
        rounds += 1
        assert rounds < 5000
        group = scheduler.next_group(chunk)
        assert group
        sizes = [min(chunk, s.prefill_left) for s in group]
        assert len(group) == 1 or len(group) * max(sizes) <= chunk
        assert padded or len(set(sizes)) == 1
        for sequence, size in zip(group, sizes, strict=True):
            assert len(group) == 1 or size == sequence.prefill_left
            sequence.prefilled += size
            if not sequence.prefill_left:
                scheduler.remove(sequence)


def test_models_without_batches_compute_each_prompt_alone() -> None:
    scheduler = Scheduler(8, padded_prefill=False, grouped_prefill=False)
    for number in range(3):
        scheduler.add(_sequence(9, number))
    _admit(scheduler, 0)
    assert [s.seq_id for s in scheduler.next_group(64)] == [0]
