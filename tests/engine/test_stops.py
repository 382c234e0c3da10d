"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxceld.engine.stops import StopMatcher

_TEXT = st.text(alphabet="abX", max_size=30)


def _naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    found = [(text.find(stop), i) for i, stop in enumerate(stops) if stop in text]
    if not found:
        return text, None
    at, which = min(found)
    return text[:at], stops[which]


@given(st.lists(_TEXT, max_size=8), st.lists(st.text("abX", min_size=1, max_size=4), max_size=3))
def test_single_characters_agree_with_the_whole_text(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    matcher = StopMatcher(stops)
    shown = ""
    for character in text:
        shown += matcher.push(character)
    if matcher.matched is None:
        shown += matcher.finish()
    if matcher.matched is None:
        assert shown == text
        assert not any(stop in text for stop in stops)
    else:
        # The stop that ends first is met first; nothing of it or after it was shown.
        end = min(text.find(stop) + len(stop) for stop in stops if stop in text)
        assert text[:end].startswith(shown)
        assert shown + matcher.matched == text[: len(shown) + len(matcher.matched)]
        assert len(shown) + len(matcher.matched) == end


@given(st.lists(_TEXT, max_size=8), st.text("abX", min_size=1, max_size=5))
def test_pieces_make_no_difference(pieces: list[str], stop: str) -> None:
    matcher = StopMatcher([stop])
    shown = "".join(matcher.push(piece) for piece in pieces)
    if matcher.matched is None:
        shown += matcher.finish()
    assert (shown, matcher.matched) == _naive("".join(pieces), [stop])


@pytest.mark.parametrize(
    ("pieces", "stops", "shown"),
    [
        (["ab", "cd"], ["bc"], "a"),
        (["hello\n", "\nUser", ":"], ["\n\nUser:"], "hello"),
        (["aaa", "ab"], ["aab"], "aa"),
        (["xyz"], ["z", "yz"], "x"),
    ],
)
def test_stop_across_pieces(pieces: list[str], stops: list[str], shown: str) -> None:
    matcher = StopMatcher(stops)
    assert "".join(matcher.push(piece) for piece in pieces) == shown
    assert matcher.matched in stops
    assert matcher.push("more") == ""


def test_a_possible_stop_is_held_back_until_it_is_decided() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("the E") == "the "
    assert matcher.push("N") == ""
    assert matcher.push("x") == "ENx"
    assert matcher.push("EN") == ""
    assert matcher.finish() == "EN"
