"""What the cache decided for a request is kept until its line is written, and not for ever."""

from __future__ import annotations

from mlxceld.prompt_cache.outcomes import MOST_KEPT, CacheOutcome, Outcomes


def test_one_reject_for_each_direction_and_the_last_adoption() -> None:
    outcomes = Outcomes()
    assert outcomes.declined(1, "mode_mismatch", donation=False)
    assert not outcomes.declined(1, "layout_constraints", donation=False)
    assert outcomes.declined(1, "oversized", donation=True)
    assert not outcomes.declined(1, "disabled", donation=True)
    outcomes.adopted(1, "blocks")
    outcomes.adopted(2, "prefix")
    outcomes.adopted(2, None)
    assert outcomes.entry_of(1) == "blocks"
    assert outcomes.take(1) == CacheOutcome("blocks", "mode_mismatch", "oversized")
    assert outcomes.take(1) == outcomes.take(2) == CacheOutcome()
    assert len(outcomes) == 0


def test_without_a_sequence_nothing_is_kept() -> None:
    outcomes = Outcomes()
    assert outcomes.declined(None, "disabled", donation=True)
    assert outcomes.declined(None, "disabled", donation=True)
    outcomes.adopted(None, "blocks")
    assert len(outcomes) == 0


def test_requests_whose_line_never_comes_are_forgotten() -> None:
    outcomes = Outcomes()
    for seq_id in range(MOST_KEPT + 3):
        outcomes.adopted(seq_id, "blocks")
    assert len(outcomes) == MOST_KEPT
    assert outcomes.entry_of(2) is None
    assert outcomes.entry_of(3) == "blocks"
