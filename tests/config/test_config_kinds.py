"""What each kind of value takes, what it refuses, and that it reads back what it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxceld.config import SETTINGS, kinds
from mlxceld.config.kinds import Kind
from mlxceld.config.units import MAX_DURATION, MAX_SIZE, readable_bytes

INTEGER = kinds.IntKind(1, 4096)
ENTRIES = kinds.IntKind(0, 10**9, zero_words=True)
COLOUR = kinds.ChoiceKind(("red", "green"))

GOOD: list[tuple[Kind[Any], str, Any]] = [
    (kinds.SizeKind(), "8GiB", 2**33),
    (kinds.SizeKind(), "8GB", 8 * 10**9),
    (kinds.SizeKind(), "8MiB", 8 * 2**20),
    (kinds.SizeKind(), "1TiB", 2**40),
    (kinds.SizeKind(), "1TB", 10**12),
    (kinds.SizeKind(), "3KiB", 3072),
    (kinds.SizeKind(), "3KB", 3000),
    (kinds.SizeKind(), "2147483648", 2147483648),
    (kinds.SizeKind(), "0", 0),
    (kinds.SizeKind(), "off", 0),
    (kinds.SizeKind(), " Never ", 0),
    (kinds.SizeKind(), str(MAX_SIZE), MAX_SIZE),
    (kinds.SizeKind(1024), "1KiB", 1024),
    (kinds.AutoSizeKind(), "auto", None),
    (kinds.AutoSizeKind(), "1", 1),
    (kinds.DurationKind(), "90s", 90.0),
    (kinds.DurationKind(), "15m", 900.0),
    (kinds.DurationKind(), "2h", 7200.0),
    (kinds.DurationKind(), "90", 90.0),
    (kinds.DurationKind(), "1.5h", 5400.0),
    (kinds.DurationKind(), "0.07m", 4.2),
    (kinds.DurationKind(), "0", 0.0),
    (kinds.DurationKind(), "never", 0.0),
    (kinds.DurationKind(), "OFF", 0.0),
    (kinds.DurationKind(zero_words=False), "0s", 0.0),
    (INTEGER, "1", 1),
    (INTEGER, " 4096 ", 4096),
    (INTEGER, "+16", 16),
    (INTEGER, "08", 8),
    (ENTRIES, "off", 0),
    (ENTRIES, " never ", 0),
    (kinds.BoolKind(), "Yes", True),
    (kinds.BoolKind(), "on", True),
    (kinds.BoolKind(), "1", True),
    (kinds.BoolKind(), "TRUE", True),
    (kinds.BoolKind(), "no", False),
    (kinds.BoolKind(), "off", False),
    (kinds.BoolKind(), "0", False),
    (kinds.BoolKind(), "false", False),
    (COLOUR, "GREEN", "green"),
    (kinds.TextKind(), " a b ", "a b"),
    (kinds.TextsKind(), "a, b,,c", ("a", "b", "c")),
    (kinds.TextsKind(), ",", ()),
    (kinds.PathKind(), "a b/c", Path("a b/c")),
    (kinds.PathsKind(), "/a, b", (Path("/a"), Path("b"))),
    (kinds.HostKind(), "localhost", "localhost"),
    (kinds.HostKind(), "my-mac.local", "my-mac.local"),
    (kinds.HostKind(), "0.0.0.0", "0.0.0.0"),
    (kinds.HostKind(), "::1", "::1"),
    (kinds.HostKind(), "[::1]", "::1"),
    (kinds.AddressKind(), "127.0.0.1:8485", "127.0.0.1:8485"),
    (kinds.AddressKind(), "[::1]:0", "[::1]:0"),
    (kinds.AddressKind(), "localhost:65535", "localhost:65535"),
    (kinds.OnlyOneKind(), "1", True),
]

BAD: list[tuple[Kind[Any], str, str]] = [
    *[
        (kinds.SizeKind(), text, f"expected a size like 8GiB, 500MB or a number of bytes, .*{text}")
        for text in (
            *("", "lots", "8gib", "8G", "8Gb", "8B", "8 GiB", "1.5GiB", "1.5", "GiB"),
            *("-1", "1e9", "1,000", "0x10", "1_000"),
        )
    ],
    (kinds.SizeKind(), "٣", "expected a size"),
    (kinds.SizeKind(), str(MAX_SIZE + 1), f"at most {MAX_SIZE}"),
    (kinds.SizeKind(), "999999999TiB", f"at most {MAX_SIZE}"),
    (kinds.SizeKind(), "9" * 5000, r"expected a size .*9\.\.\.'$"),
    (kinds.SizeKind(1024), "1000", "at least 1KiB, found '1000'"),
    (kinds.SizeKind(1024), "off", "at least 1KiB, found 'off'"),
    (kinds.AutoSizeKind(), "0", "at least 1, found '0'"),
    *[
        (kinds.DurationKind(), text, "expected a duration like 90s, 15m, 2h")
        for text in ("", "soon", "1d", "90S", "1h30m", "12:30", "-5s", "1e3", "inf", "nan")
    ],
    (kinds.DurationKind(), "87601h", "at most 87600h, found '87601h'"),
    (kinds.DurationKind(zero_words=False), "never", "expected a duration"),
    (kinds.DurationKind(zero_words=False), " Off", "expected a duration"),
    *[
        (INTEGER, text, "expected a whole number from 1 to 4096, found")
        for text in ("", "0", "-1", "4097", "1.0", "1e3", "0o10", "off", "true", "9" * 5000, "²")
    ],
    (ENTRIES, "none", "expected a whole number from 0"),
    (kinds.BoolKind(), "maybe", "expected true or false .* found 'maybe'"),
    (kinds.BoolKind(), "", "expected true or false"),
    (kinds.BoolKind(), "2", "expected true or false"),
    (COLOUR, "blue", "expected one of red, green, found 'blue'"),
    (kinds.TextKind(), "  ", "expected text, found nothing"),
    (kinds.TextKind(), "a\0b", "without NUL"),
    (kinds.OptionalTextKind(), "", "expected text, found nothing"),
    (kinds.PathKind(), "", "expected a path, found ''"),
    (kinds.PathKind(), "a\0b", "expected a path"),
    (kinds.PathKind(), "~no-such-user-here/x", "expected a path, found '~no-such-user-here/x'"),
    (kinds.PathsKind(), "a,~no-such-user-here", "expected a path"),
    *[
        (kinds.HostKind(), text, "expected a host name or address, without a port, found")
        for text in ("", "127.0.0.1:80", "a b", "http://x", "*", "[localhost]", "::g", "-a", "[]")
    ],
    *[
        (kinds.AddressKind(), text, "expected an address like 127.0.0.1:8485, found")
        for text in (
            "",
            "8485",
            ":8485",
            "::1:80",
            "h:",
            "h:65536",
            "h:-1",
            "h:²",
            "[x]:1",
            "a b:1",
        )
    ],
    (kinds.AddressKind(), f"h:{'9' * 5000}", "expected an address"),
    *[(kinds.OnlyOneKind(), text, "exactly 1") for text in ("true", "0", " 1", "1 ", "01", "")],
]


@pytest.mark.parametrize(("kind", "text", "value"), GOOD)
def test_good_text(kind: Kind[Any], text: str, value: object) -> None:
    found = kind.parse(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("kind", "text", "message"), BAD)
def test_bad_text_is_refused_with_what_was_expected(
    kind: Kind[Any], text: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        kind.parse(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_leading_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert kinds.PathKind().parse("~/keys") == Path("/home/somebody/keys")


@pytest.mark.parametrize("name", SETTINGS)
def test_every_default_is_written_as_text_that_reads_back(name: str) -> None:
    row = SETTINGS[name]
    text = row.kind.format(row.default)
    if text:
        assert row.kind.parse(text) == row.default
    else:
        assert row.default in (None, ())


@given(st.integers(0, MAX_SIZE))
def test_sizes_read_back(size: int) -> None:
    assert kinds.parse_size(kinds.format_size(size)) == size


@given(st.integers(0, 2**23 - 1), st.sampled_from(["KiB", "MiB", "GiB", "TiB"]))
def test_whole_units_are_written_with_a_unit(count: int, unit: str) -> None:
    size = kinds.parse_size(f"{count}{unit}")
    assert kinds.parse_size(kinds.format_size(size)) == size
    assert not size or kinds.format_size(size).endswith("iB")


@given(st.integers(0, 10**9), st.integers(0, 10**9 - 1), st.sampled_from(["", "s", "m", "h"]))
def test_durations_read_back(whole: int, parts: int, unit: str) -> None:
    try:
        seconds = kinds.parse_duration(f"{whole}.{parts:09}{unit}")
    except ValueError:
        assert (whole + 1) * 3600 > MAX_DURATION
        return
    assert kinds.parse_duration(kinds.format_duration(seconds)) == seconds


@given(st.text())
def test_no_text_breaks_a_kind(text: str) -> None:
    """Any text is a value that reads back, or a ValueError with what was expected."""
    for row in SETTINGS.values():
        written, value, message = "", None, "expected "
        try:
            value = row.kind.parse(text)
            written = row.kind.format(value)
        except ValueError as error:
            message = str(error)
        assert message.startswith("expected "), row.name
        assert not written or row.kind.parse(written) == value, row.name


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (538060032, "513.1 MiB"), (2**43, "8.0 TiB")],
)
def test_readable_bytes(count: int, text: str) -> None:
    assert readable_bytes(count) == text
