"""Large bodies parsed in slices: the values are those of Python's own parser."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxceld.api import large_json
from mlxceld.api.large_json import parse_in_slices

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4)
    ),
    max_leaves=30,
)


@pytest.fixture(autouse=True, scope="module")
def small_slices() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_json, "_SLICE", 16)
        patch.setattr(large_json, "LONG_STRING", 8)
        yield


def parsed(raw: bytes) -> Any:
    return parse_in_slices(raw, json.loads, pause=lambda _: None)


@given(value=values, ascii_only=st.booleans(), spaced=st.booleans())
def test_any_value_is_parsed_as_python_does(value: Any, ascii_only: bool, spaced: bool) -> None:
    separators = (", ", ": ") if spaced else (",", ":")
    raw = json.dumps(value, ensure_ascii=ascii_only, separators=separators).encode()
    assert parsed(raw) == value


@given(text=st.text(alphabet='\\"u0d83x,[{\n😀é', max_size=120))
def test_strings_are_cut_where_nothing_is_open(text: str) -> None:
    for ascii_only in (False, True):
        raw = json.dumps({"a": text, text: [text]}, ensure_ascii=ascii_only).encode()
        assert parsed(raw) == {"a": text, text: [text]}


@given(raw=st.binary(max_size=80))
def test_what_is_no_json_is_refused_all_the_same(raw: bytes) -> None:
    for text in (raw, b'{"a": "' + raw, b'["' + raw + b'"]'):
        try:
            expected = json.loads(text)
        except ValueError:
            with pytest.raises(ValueError, match=r"."):
                parsed(text)
        else:
            if "\ud800" <= max(json.dumps(expected, ensure_ascii=False)) <= "\udfff":
                continue
            assert parsed(text) == expected


def test_other_threads_get_their_turn() -> None:
    pauses: list[float] = []
    raw = json.dumps({"a": "x" * 1600, "b": [1] * 400}).encode()
    parse_in_slices(raw, json.loads, pause=pauses.append)
    assert len(pauses) >= len(raw) // 32
    assert min(pauses) > 0
