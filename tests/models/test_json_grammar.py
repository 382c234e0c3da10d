"""Schemas as masks over a tokenizer's tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mlxceld.models.grammar import GrammarError, JsonConstraint
from mlxceld.models.text import TextCodec

MakeCodec = Callable[..., TextCodec]


def allowed(rule: JsonConstraint, codec: TextCodec) -> set[int]:
    mask = rule.mask()
    return {token for token in range(codec.vocab_size) if mask[token // 8] >> token % 8 & 1}


def test_only_what_fits_is_allowed_and_then_only_an_end(make_codec: MakeCodec) -> None:
    codec = make_codec("")
    rule = codec.grammar({"enum": ["ab"]}).constraint()
    for byte in b'"ab"':
        assert allowed(rule, codec) == {byte}
        rule.accept(byte)
    assert allowed(rule, codec) == codec.eos_ids
    for end in codec.eos_ids:
        rule.accept(end)


def test_every_sequence_has_a_state_of_its_own(make_codec: MakeCodec) -> None:
    codec = make_codec("")
    schema = {"enum": ["ab"]}
    one = codec.grammar(schema).constraint()
    one.accept(ord('"'))
    other = codec.grammar(schema).constraint()
    assert allowed(one, codec) == {ord("a")}
    assert allowed(other, codec) == {ord('"')}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "text"}, "text"),
        ({"$ref": "http://example.org/x"}, "example.org"),
        ({"type": "string", "pattern": "(?=a)b"}, "look"),
    ],
)
def test_what_cannot_be_enforced_is_said(
    make_codec: MakeCodec, schema: dict[str, Any], said: str
) -> None:
    with pytest.raises(GrammarError, match=said):
        make_codec("").grammar(schema)


@pytest.mark.parametrize(
    ("form", "text", "fits"),
    [
        ("date", "2024-12-31", True),
        ("date", "0999-02-28", True),
        ("date", "1815-02-29", False),
        ("date", "2024-04-31", False),
        ("date", "0000-01-01", False),
        ("date-time", "2024-12-31T23:59:59Z", True),
        ("date-time", "2024-12-31T23:59:59.5+01:00", True),
        ("date-time", "2024-12-31T24:00:00Z", False),
    ],
)
def test_dates_are_days_that_there_are(
    make_codec: MakeCodec, form: str, text: str, fits: bool
) -> None:
    codec = make_codec("")
    schema = {"type": "object", "properties": {"format": {"type": "string", "format": form}}}
    rule = codec.grammar({**schema, "required": ["format"]}).constraint()
    came = True
    for byte in f'{{"format": "{text}"'.encode():
        came = byte in allowed(rule, codec)
        if not came:
            break
        rule.accept(byte)
    assert came is fits
