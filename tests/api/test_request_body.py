"""From bytes to a JSON object."""

from __future__ import annotations

import json

import pytest

from mlxceld.api.body import describe, parse_object
from mlxceld.api.errors import ApiError


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "the body is empty"),
        (b" \n", "the body is empty"),
        (b"{", "the body is not JSON"),
        (b"{'a': 1}", "the body is not JSON"),
        (b'{"a": NaN}', "NaN is not a JSON value"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON value"),
        (b"[1]", "the body is a list, expected a JSON object"),
        (b"null", "the body is null"),
        (b'"' + b"a" * 1000 + b'"', 'the body is "aaa'),
        (b'{"a": "\xff"}', "the body is not UTF-8: byte 7"),
        ('{"a": 1}'.encode("utf-16"), "the body is not UTF-8"),
        (b'{"a": "\\ud83d"}', "half of a surrogate pair"),
        (b'{"\\uDE00": 1}', "half of a surrogate pair"),
        (b'{"a": ' + b"9" * 5000 + b"}", "the body has a number that cannot be read"),
        (b'{"a": 1e400}', "1e400 is larger than any double-precision number"),
        (b'{"a": [-1.5e999]}', "-1.5e999 is larger than any"),
        (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", "nested deeper than 64 levels"),
        (b'{"a":' + b"[" * 200_000, "nested deeper than 64 levels"),
    ],
)
def test_what_is_no_json_object_is_refused(raw: bytes, message: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_object(raw)
    assert refused.value.status == 400
    assert message in str(refused.value)
    assert len(str(refused.value)) < 250


def test_what_is_one_is_taken_as_it_is() -> None:
    assert parse_object(b'{"a": 1, "a": 2}') == {"a": 2}
    assert parse_object(b'\xef\xbb\xbf{"a": "\\ud83d\\ude00 \\\\ud83d"}') == {"a": "😀 \\ud83d"}
    nested = parse_object(b'{"a":' + b"[" * 63 + b"]" * 63 + b"}")
    assert nested["a"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 1}, "an object"),
        ([1], "a list"),
        ([], "an empty list"),
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ("x" * 10**6, '"' + "x" * 56 + "..."),
        (10**4000, "1" + "0" * 56 + "..."),
    ],
)
def test_values_are_described_shortly(value: object, text: str) -> None:
    assert describe(value) == text


@pytest.mark.parametrize("half", ["\\ud83d", "\\ude00", "\\ud83d\\ud83d\\ude00"])
def test_half_a_character_is_found_in_a_long_string(half: str) -> None:
    raw = ('{"a": "' + "é" * 70_000 + half + "x" * 70_000 + '"}').encode()
    with pytest.raises(ApiError, match=r"half of a surrogate pair|not JSON"):
        parse_object(raw)
    whole = '{"a": "' + "é" * 70_000 + "\\ud83d\\ude00" * 9_000 + '"}'
    assert parse_object(whole.encode()) == json.loads(whole)
