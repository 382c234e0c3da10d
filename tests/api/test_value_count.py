"""A body's JSON values are counted while it arrives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxceld.api.body import values_limit
from mlxceld.api.value_count import TooManyValuesError, ValueCounter

LIMIT = 1000

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='\\",[{é😀u0', max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=30,
)


def number_of_values(value: Any) -> int:
    """As they are counted: a separator each outside of strings; an empty holder has one."""
    if isinstance(value, dict):
        return max(1, len(value)) + sum(map(number_of_values, value.values()))
    if isinstance(value, list):
        return max(1, len(value)) + sum(map(number_of_values, value))
    return 0


def fits(raw: bytes, limit: int, cuts: list[int]) -> bool:
    counter = ValueCounter(limit)
    places = sorted(cut % (len(raw) + 1) for cut in cuts)
    try:
        for start, end in zip([0, *places], [*places, len(raw)], strict=True):
            counter.feed(raw[start:end])
    except TooManyValuesError:
        return False
    return True


@given(value=values, ascii_only=st.booleans(), cuts=st.lists(st.integers(0, 9999), max_size=9))
def test_the_count_is_exact_however_the_text_is_cut(
    value: Any, ascii_only: bool, cuts: list[int]
) -> None:
    # Strings have a limit of their own, so wide that none of these comes near it.
    raw = json.dumps([value, [0] * 200], ensure_ascii=ascii_only).encode()
    count = number_of_values([value, [0] * 200])
    assert fits(raw, count, cuts)
    assert not fits(raw, count - 1, cuts)


@pytest.mark.parametrize(
    "raw",
    [
        b"[" + b"0," * LIMIT + b"0]",
        b"[" + b"{}," * LIMIT + b"{}]",
        b"[" * (LIMIT + 1),
        b'["a",' * (LIMIT + 1),
        b'""' * (3 * LIMIT),
        b"{" + b",".join(b'"%d":1' % n for n in range(2 * LIMIT)) + b"}",
    ],
)
def test_too_many_are_refused(raw: bytes) -> None:
    counter = ValueCounter(LIMIT)
    with pytest.raises(TooManyValuesError, match="more than 1000 values"):
        counter.feed(raw)


def test_separators_in_strings_do_not_count() -> None:
    raw = json.dumps([',[{":' * 5000, "x"]).encode()
    assert fits(raw, 2, [])
    assert fits(raw, 2, list(range(0, len(raw), 7)))


def test_the_limit_follows_the_context() -> None:
    assert values_limit(0) == 65_536
    assert values_limit(8192) == 65_536 + 4 * 8192
    # A prompt of ids that fills the context is never refused.
    assert all(values_limit(length) > length for length in (131_072, 2**20, 10**7))
