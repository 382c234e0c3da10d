"""Which entries are booked as pinned."""

from __future__ import annotations

import pytest

from mlxceld.prompt_cache.key import Bucket
from mlxceld.prompt_cache.pins import Pins
from mlxceld.prompt_cache.radix import as_tokens
from mlxceld.prompt_cache.whole_entry import Entry


def entry(session: str, pins: int = 0) -> Entry[None]:
    return Entry(Bucket("m", "sig"), session, as_tokens([1]), None, 1, 0.0, 0.0, pins=pins)


def by_session(found: Entry[None]) -> str:
    return found.session


def test_one_unpin_ends_any_number_of_pins():
    pins, one, other = Pins[Entry[None]](), entry("a"), entry("b")
    for _ in range(2):
        pins.pin(one)
    pins.pin(other)
    assert (one.pins, len(pins), list(pins)) == (1, 2, [one, other])
    assert pins.unpin("a", by_session) is one
    assert (one.pins, list(pins)) == (0, [other])
    assert pins.unpin("a", by_session) is None


def test_an_entry_in_place_of_a_pinned_one_is_booked_and_one_that_leaves_is_not():
    pins, heir, plain = Pins[Entry[None]](), entry("a", pins=1), entry("b")
    pins.add(heir)
    pins.add(plain)
    assert list(pins) == [heir]
    pins.check([heir, plain])
    pins.drop(plain)
    pins.drop(heir)
    assert not pins
    with pytest.raises(AssertionError, match="1 pins, 0 booked"):
        pins.check([heir, plain])
