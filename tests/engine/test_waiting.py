"""Sessions take turns, and what had to make way comes first."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxceld.engine.request import GenerationRequest, SamplingParams
from mlxceld.engine.sequence import Sequence
from mlxceld.engine.waiting import WaitingLine


def _sequence(number: int, session: str) -> Sequence:
    request = GenerationRequest(f"r{number}", [1], SamplingParams(), session=session)
    return Sequence(
        seq_id=number,
        request=request,
        stream=None,  # type: ignore[arg-type] - the line never looks at it
        submitted_at=0.0,
        deadline=None,
        max_tokens=1,
        seed=0,
    )


def _take_all(line: WaitingLine) -> list[int]:
    return [line.take().seq_id for _ in range(len(line))]


def test_one_session_with_many_does_not_hold_up_another() -> None:
    line = WaitingLine()
    for number in range(40):
        line.add(_sequence(number, "agent"))
    line.add(_sequence(40, "chat"))
    line.add(_sequence(41, "chat"))
    assert _take_all(line)[:5] == [0, 40, 1, 41, 2]


def test_who_had_to_make_way_comes_first_the_oldest_before_the_younger() -> None:
    line = WaitingLine()
    line.add(_sequence(7, "a"))
    line.add_back(_sequence(5, "b"))
    line.add_back(_sequence(3, "c"))
    first = line.first()
    assert first is not None
    assert first.seq_id == 3
    assert len(line) == 3
    assert _take_all(line) == [3, 5, 7]
    assert line.first() is None
    with pytest.raises(IndexError):
        line.take()


def test_who_goes_is_not_waited_for() -> None:
    line = WaitingLine()
    sequences = [_sequence(i, "a" if i < 2 else "b") for i in range(4)]
    for sequence in sequences[:3]:
        line.add(sequence)
    line.add_back(sequences[3])
    assert line.remove(sequences[0])
    assert not line.remove(sequences[0])
    assert line.remove(sequences[3])
    assert len(line) == 2
    assert _take_all(line) == [1, 2]


@given(st.lists(st.sampled_from("abcd"), max_size=40))
def test_everyone_gets_a_turn_and_nobody_two_ahead_of_another(sessions: list[str]) -> None:
    line = WaitingLine()
    for number, session in enumerate(sessions):
        line.add(_sequence(number, session))
    left, served = Counter(sessions), Counter[str]()
    order = []
    while (first := line.first()) is not None:
        assert line.take() is first
        session = first.request.session
        served[session] += 1
        left[session] -= 1
        order.append((session, first.seq_id))
        behind = [served[s] for s in left if left[s]]
        assert all(served[session] - count <= 1 for count in behind)
    assert sorted(number for _, number in order) == list(range(len(sessions)))
    for name in "abcd":
        mine = [number for session, number in order if session == name]
        assert mine == sorted(mine)
