"""Large bodies parsed in slices: the values are those of Python's own parser."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxceld.api import large_json
from mlxceld.api.body import parse_object, values_limit
from mlxceld.api.errors import ApiError
from mlxceld.api.large_json import TooManyValuesError, parse_in_slices

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


def parsed(raw: bytes, limit: int = 10_000) -> Any:
    return parse_in_slices(raw, limit, json.loads, pause=lambda _: None)


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


@pytest.mark.parametrize(
    "raw",
    [
        b"[" + b"0," * 1000 + b"0]",
        b"[" + b"{}," * 1000 + b"{}]",
        b"[" * 1001,
        b'["a",' * 1001,
        b'""' * 3001,
        b"{" + b",".join(b'"%d":1' % n for n in range(2000)) + b"}",
    ],
)
def test_values_are_counted_before_they_are_made(raw: bytes) -> None:
    def loads(_: bytes) -> Any:
        pytest.fail("parsed")

    with pytest.raises(TooManyValuesError, match="more than 1000"):
        parse_in_slices(raw, 1000, loads, pause=lambda _: None)


def test_separators_in_strings_do_not_count() -> None:
    text = ',[{":' * 5000
    assert parsed(json.dumps([text, "x"]).encode(), limit=10) == [text, "x"]


def test_other_threads_get_their_turn() -> None:
    pauses: list[float] = []
    raw = json.dumps({"a": "x" * 1600, "b": [1] * 400}).encode()
    parse_in_slices(raw, 1000, json.loads, pause=pauses.append)
    assert len(pauses) >= len(raw) // 32
    assert min(pauses) > 0


def test_the_limit_follows_the_context() -> None:
    assert values_limit(0) == 65_536
    assert values_limit(8192) == 65_536 + 4 * 8192
    # A prompt of ids that fills the context is never refused.
    assert all(values_limit(length) > length for length in (131_072, 2**20, 10**7))


def test_a_body_of_too_many_values_is_refused_by_name() -> None:
    raw = json.dumps({"messages": [{"role": "user", "content": "hi"}] * 30_000}).encode()
    with pytest.raises(ApiError, match="more than 65536 JSON values") as refused:
        parse_object(raw, values_limit(0))
    assert (refused.value.status, refused.value.code) == (400, "too_many_values")
    history = {"messages": [{"role": "user", "content": "hi " * 30}] * 5_000}
    assert parse_object(json.dumps(history).encode(), values_limit(8192)) == history


@pytest.mark.parametrize("half", ["\\ud83d", "\\ude00", "\\ud83d\\ud83d\\ude00"])
def test_half_a_character_is_found_in_a_long_string(half: str) -> None:
    raw = ('{"a": "' + "é" * 70_000 + half + "x" * 70_000 + '"}').encode()
    with pytest.raises(ApiError, match=r"half of a surrogate pair|not JSON"):
        parse_object(raw)
    whole = '{"a": "' + "é" * 70_000 + "\\ud83d\\ude00" * 9_000 + '"}'
    assert parse_object(whole.encode()) == json.loads(whole)
