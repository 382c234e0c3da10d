"""Schemas as masks over a tokenizer's tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from mlxceld.models.grammar import GrammarError, JsonConstraint, LazyCompiler
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
        ({"$ref": "#"}, "no text fits"),
        ({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, "no text fits"),
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


def properties(count: int, **more: Any) -> dict[str, Any]:
    names = [f"property_{number}" for number in range(count)]
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, **more}


def alternatives(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        inner = {"type": "object", "properties": {"a": schema}}
        schema = {"anyOf": [{**inner, "required": ["a"]}, inner]}
    return schema


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (properties(5000), "the schema has 5000 optional properties, expected at most 480"),
        ({"properties": {"a": {"items": properties(481)}}}, "properties.a.items has 481 optional"),
        (alternatives(12), "alternatives within alternatives are 4096 ways"),
        ({"enum": list(range(200_000))}, "more than 100000 values"),
    ],
)
def test_what_would_cost_too_much_is_refused_before_it_is_compiled(
    make_codec: MakeCodec,
    monkeypatch: pytest.MonkeyPatch,
    schema: dict[str, Any],
    said: str,
) -> None:
    codec = make_codec("")
    codec.prepare_grammars()
    monkeypatch.setattr("llguidance.LLMatcher", None)
    with pytest.raises(GrammarError, match=said):
        codec.grammar(schema)


def test_a_schema_that_is_nested_too_deeply_is_refused(make_codec: MakeCodec) -> None:
    schema: dict[str, Any] = {}
    for _ in range(40):
        schema = {"properties": {"a": schema}}
    with pytest.raises(GrammarError, match="deeper than 64"):
        make_codec("").grammar(schema)


def test_large_schemas_that_have_one_way_are_followed(make_codec: MakeCodec) -> None:
    codec = make_codec("")
    schema = properties(5000)
    rule = codec.grammar({**schema, "required": list(schema["properties"])}).constraint()
    for byte in b'{"property_0": "x", "property_1": "", "property_2':
        assert byte in allowed(rule, codec)
        rule.accept(byte)
    # As many optional ones as are let through, to the first choice among all of them.
    rule = codec.grammar(properties(480)).constraint()
    for byte in b'{"property_479": "x"}':
        assert byte in allowed(rule, codec)
        rule.accept(byte)
    forms = [properties(5, required=["property_0"], description=str(n)) for n in range(300)]
    assert allowed(codec.grammar({"anyOf": forms}).constraint(), codec) == {ord("{")}


def test_what_turns_out_too_costly_ends_its_own_sequence(make_codec: MakeCodec) -> None:
    codec = make_codec("")
    # References hide the number of ways from the bounds.
    definitions = {f"m{n}": properties(450, description=str(n)) for n in range(8)}
    schema = {"anyOf": [{"$ref": f"#/$defs/m{n}"} for n in range(8)], "$defs": definitions}
    costly = codec.grammar(schema).constraint()
    other = codec.grammar({"enum": ["ab"]}).constraint()

    def follow() -> None:
        for byte in b'{"property_4':
            costly.mask()
            costly.accept(byte)

    with pytest.raises(GrammarError, match="too costly"):
        follow()
    assert allowed(other, codec) == {ord('"')}


def test_schemas_are_compiled_side_by_side(
    make_codec: MakeCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    import llguidance

    codec = make_codec("")
    codec.prepare_grammars()
    entered, go_on = threading.Event(), threading.Event()
    real = llguidance.LLMatcher

    def held(tokenizer: Any, grammar: str, **options: Any) -> Any:
        if "slow" in grammar:
            entered.set()
            assert go_on.wait(30)
        return real(tokenizer, grammar, **options)

    monkeypatch.setattr("llguidance.LLMatcher", held)
    done: list[object] = []
    slow = threading.Thread(target=lambda: done.append(codec.grammar({"const": "slow"})))
    slow.start()
    assert entered.wait(30)
    codec.grammar({"const": "quick"})
    assert not done
    go_on.set()
    slow.join(30)
    assert len(done) == 1


def test_a_tokenizer_that_cannot_be_enforced_is_said_to_who_asks(make_codec: MakeCodec) -> None:
    codec = make_codec("")
    compiler = LazyCompiler(object(), codec.vocab_size, codec.eos_ids)
    compiler.prepare()
    for _ in range(2):
        with pytest.raises(GrammarError, match="not possible with this model's tokenizer"):
            compiler.compile({"type": "object"})
