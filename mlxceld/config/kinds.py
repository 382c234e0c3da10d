"""The kinds of values that settings take: how each is read from text and written back.

Every kind reads the same text from a flag, the environment and YAML, where a scalar's own text
counts: ``off`` is the word, not a boolean, until the kind of the setting says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

_ZERO_WORDS = ("never", "off")
_TRUE_WORDS = ("true", "1", "yes", "on")
_FALSE_WORDS = ("false", "0", "no", "off")

_SIZE_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SIZE = re.compile(r"(?P<number>\d{1,18}(?:\.\d{1,9})?)\s*(?P<unit>[A-Za-z]*)", re.ASCII)
_DURATION_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?P<number>\d{1,12}(?:\.\d{1,9})?)\s*(?P<unit>[A-Za-z]*)", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)


def parse_size(text: str) -> int:
    """Bytes from ``8GiB`` (2^33), ``8GB`` (8e9) or plain digits; ``off`` and ``never`` are 0.

    Raises ValueError with what was expected.
    """
    expected = f"expected a size like 8GiB, 500MB or a number of bytes, found {text!r}"
    if text.lower() in _ZERO_WORDS:
        return 0
    match = _SIZE.fullmatch(text.strip())
    if match is None or match["unit"] not in _SIZE_UNITS:
        raise ValueError(expected)
    unit = _SIZE_UNITS[match["unit"]]
    if "." in match["number"] and unit == 1:
        raise ValueError(f"{expected}; there are no parts of a byte")
    if "." in match["number"]:
        return int(float(match["number"]) * unit)
    return int(match["number"]) * unit


def format_size(size: int) -> str:
    """A size that :func:`parse_size` reads back as the same number, in IEC units where exact."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _SIZE_UNITS[unit] == 0:
            return f"{size // _SIZE_UNITS[unit]}{unit}"
    return str(size)


def parse_duration(text: str) -> float:
    """Seconds from ``90s``, ``15m``, ``2h`` or plain digits; ``off`` and ``never`` are 0.

    Raises ValueError with what was expected.
    """
    if text.lower() in _ZERO_WORDS:
        return 0.0
    match = _DURATION.fullmatch(text.strip())
    if match is None or match["unit"] not in _DURATION_UNITS:
        raise ValueError(
            f"expected a duration like 90s, 15m, 2h or a number of seconds, found {text!r}"
        )
    return float(match["number"]) * _DURATION_UNITS[match["unit"]]


def format_duration(seconds: float) -> str:
    """A duration that :func:`parse_duration` reads back as the same number."""
    for unit in ("h", "m"):
        if seconds and seconds % _DURATION_UNITS[unit] == 0:
            return f"{int(seconds / _DURATION_UNITS[unit])}{unit}"
    return f"{int(seconds)}s" if seconds == int(seconds) else f"{seconds:.9f}".rstrip("0") + "s"


class Kind(Generic[T]):
    """How a value is read from text, shown, and named in help. ``many`` kinds take several."""

    metavar = "TEXT"
    expected = "text"
    many = False

    def parse(self, text: str) -> T:
        """The value; raises ValueError whose text says what was expected and found."""
        raise NotImplementedError

    def format(self, value: T) -> str:
        """The value as text that :meth:`parse` reads back."""
        return str(value)


class TextKind(Kind[str]):
    """Any text that is not empty."""

    def parse(self, text: str) -> str:
        """See :class:`Kind`."""
        if not text.strip():
            raise ValueError("expected text, found nothing")
        return text


class OptionalTextKind(Kind["str | None"]):
    """Text, or nothing."""

    def parse(self, text: str) -> str | None:
        """See :class:`Kind`."""
        return TextKind().parse(text)

    def format(self, value: str | None) -> str:
        """See :class:`Kind`."""
        return "" if value is None else value


class BoolKind(Kind[bool]):
    """true or false, in the words people use."""

    metavar = "BOOL"
    expected = "true or false"

    def parse(self, text: str) -> bool:
        """See :class:`Kind`."""
        word = text.strip().lower()
        if word in _TRUE_WORDS:
            return True
        if word in _FALSE_WORDS:
            return False
        raise ValueError(f"expected true or false (or yes/no, on/off, 1/0), found {text!r}")

    def format(self, value: bool) -> str:
        """See :class:`Kind`."""
        return "true" if value else "false"


@dataclass(frozen=True)
class IntKind(Kind[int]):
    """A whole number from ``least`` to ``most``; ``zero_words`` lets never and off mean 0."""

    least: int
    most: int
    zero_words: bool = False
    metavar = "N"

    @property
    def expected(self) -> str:  # type: ignore[override]
        """What the number may be."""
        return f"a whole number from {self.least} to {self.most}"

    def parse(self, text: str) -> int:
        """See :class:`Kind`."""
        if self.zero_words and text.lower() in _ZERO_WORDS:
            return 0
        if _INTEGER.fullmatch(text.strip()) is None:
            raise ValueError(f"expected {self.expected}, found {text!r}")
        number = int(text)
        if not self.least <= number <= self.most:
            raise ValueError(f"expected {self.expected}, found {number}")
        return number


@dataclass(frozen=True)
class SizeKind(Kind[int]):
    """Bytes, at least ``least``."""

    least: int = 0
    metavar = "SIZE"
    expected = "a size like 8GiB, 500MB or a number of bytes"

    def parse(self, text: str) -> int:
        """See :class:`Kind`."""
        size = parse_size(text)
        if size < self.least:
            raise ValueError(f"expected at least {format_size(self.least)}, found {text!r}")
        return size

    def format(self, value: int) -> str:
        """See :class:`Kind`."""
        return format_size(value)


@dataclass(frozen=True)
class AutoSizeKind(Kind["int | None"]):
    """Bytes, or ``auto`` for a size worked out from the machine."""

    least: int = 1
    metavar = "SIZE"
    expected = "a size like 8GiB, or auto"

    def parse(self, text: str) -> int | None:
        """See :class:`Kind`."""
        if text.strip().lower() == "auto":
            return None
        return SizeKind(self.least).parse(text)

    def format(self, value: int | None) -> str:
        """See :class:`Kind`."""
        return "auto" if value is None else format_size(value)


class DurationKind(Kind[float]):
    """Seconds."""

    metavar = "DURATION"
    expected = "a duration like 90s, 15m, 2h or a number of seconds"

    def parse(self, text: str) -> float:
        """See :class:`Kind`."""
        return parse_duration(text)

    def format(self, value: float) -> str:
        """See :class:`Kind`."""
        return format_duration(value)


@dataclass(frozen=True)
class ChoiceKind(Kind[str]):
    """One of a few words."""

    choices: Sequence[str]

    @property
    def metavar(self) -> str:  # type: ignore[override]
        """The words."""
        return "|".join(self.choices)

    @property
    def expected(self) -> str:  # type: ignore[override]
        """The words, in a sentence."""
        return f"one of {', '.join(self.choices)}"

    def parse(self, text: str) -> str:
        """See :class:`Kind`."""
        word = text.strip().lower()
        if word not in self.choices:
            raise ValueError(f"expected {self.expected}, found {text!r}")
        return word


class PathKind(Kind["Path | None"]):
    """A path; a leading ``~`` is the home folder. Made absolute by the resolver."""

    metavar = "PATH"
    expected = "a path"

    def parse(self, text: str) -> Path | None:
        """See :class:`Kind`."""
        if not text.strip() or "\0" in text:
            raise ValueError(f"expected a path, found {text!r}")
        try:
            return Path(text).expanduser()
        except RuntimeError as error:
            raise ValueError(f"expected a path, found {text!r}: {error}") from None

    def format(self, value: Path | None) -> str:
        """See :class:`Kind`."""
        return "" if value is None else str(value)


class TextsKind(Kind["tuple[str, ...]"]):
    """Several texts: a repeatable flag, a YAML list, commas in the environment."""

    many = True
    expected = "a list of texts"

    def parse(self, text: str) -> tuple[str, ...]:
        """See :class:`Kind`."""
        return tuple(part.strip() for part in text.split(",") if part.strip())

    def format(self, value: tuple[str, ...]) -> str:
        """See :class:`Kind`."""
        return ",".join(value)


class PathsKind(Kind["tuple[Path, ...]"]):
    """Several paths: a repeatable flag, a YAML list, commas in the environment."""

    many = True
    metavar = "PATH"
    expected = "a list of paths"

    def parse(self, text: str) -> tuple[Path, ...]:
        """See :class:`Kind`."""
        parts = TextsKind().parse(text)
        return tuple(path for part in parts if (path := PathKind().parse(part)) is not None)

    def format(self, value: tuple[Path, ...]) -> str:
        """See :class:`Kind`."""
        return ",".join(map(str, value))


class AddressKind(Kind["str | None"]):
    """``HOST:PORT``, an IPv6 host in brackets."""

    metavar = "HOST:PORT"
    expected = "an address like 127.0.0.1:8485"

    def parse(self, text: str) -> str | None:
        """See :class:`Kind`."""
        host, colon, port = text.strip().rpartition(":")
        good = colon and host and port.isascii() and port.isdigit() and int(port) < 65536
        if not good or (":" in host and not (host[0] == "[" and host[-1] == "]")):
            raise ValueError(f"expected {self.expected}, found {text!r}")
        return text.strip()

    def format(self, value: str | None) -> str:
        """See :class:`Kind`."""
        return "" if value is None else value


class OnlyOneKind(Kind[bool]):
    """A switch that only the literal ``1`` turns on, as the environment's trace variable."""

    metavar = "1"
    expected = "exactly 1"

    def parse(self, text: str) -> bool:
        """See :class:`Kind`."""
        if text != "1":
            raise ValueError(f"expected exactly 1, found {text!r}")
        return True
