"""The kinds of values that settings take: how each is read from text and written back.

Every kind reads the same text from a flag, the environment and YAML, where a scalar's own text
counts: ``off`` is the word, not a boolean, until the kind of the setting says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from mlxceld.config.units import (
    ZERO_WORDS,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
    shown,
)

__all__ = [
    "AddressKind",
    "AutoSizeKind",
    "BoolKind",
    "ChoiceKind",
    "DurationKind",
    "HostKind",
    "IntKind",
    "Kind",
    "OnlyOneKind",
    "OptionalTextKind",
    "PathKind",
    "PathsKind",
    "SizeKind",
    "TextKind",
    "TextsKind",
    "format_duration",
    "format_size",
    "parse_duration",
    "parse_size",
]

T = TypeVar("T")

_TRUE_WORDS = ("true", "1", "yes", "on")
_FALSE_WORDS = ("false", "0", "no", "off")
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_HOST_NAME = re.compile(r"\w(?:[\w.-]*\w)?\.?")


class Kind(Generic[T]):
    """How a value is read from text, shown, and named in help. ``many`` kinds take several."""

    metavar = "TEXT"
    expected = "text"
    many = False

    @property
    def item(self) -> Kind[Any]:
        """The kind of each of several values; the kind itself where it takes one."""
        return self

    def parse(self, text: str) -> T:
        """The value; raises ValueError whose text says what was expected and found."""
        raise NotImplementedError

    def format(self, value: T) -> str:
        """The value as text that :meth:`parse` reads back."""
        return str(value)


class TextKind(Kind[str]):
    """Any text that is not empty; space around it does not count."""

    def parse(self, text: str) -> str:
        """See :class:`Kind`."""
        if not text.strip():
            raise ValueError("expected text, found nothing")
        if "\0" in text:
            raise ValueError(f"expected text without NUL, found {shown(text)}")
        return text.strip()


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
        raise ValueError(f"expected true or false (or yes/no, on/off, 1/0), found {shown(text)}")

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
        if self.zero_words and text.strip().lower() in ZERO_WORDS:
            return 0
        if _INTEGER.fullmatch(text.strip()) is None:
            raise ValueError(f"expected {self.expected}, found {shown(text)}")
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
            raise ValueError(f"expected at least {format_size(self.least)}, found {shown(text)}")
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


@dataclass(frozen=True)
class DurationKind(Kind[float]):
    """Seconds; ``zero_words`` lets never and off mean 0."""

    zero_words: bool = True
    metavar = "DURATION"
    expected = "a duration like 90s, 15m, 2h or a number of seconds"

    def parse(self, text: str) -> float:
        """See :class:`Kind`."""
        if not self.zero_words and text.strip().lower() in ZERO_WORDS:
            raise ValueError(f"expected {self.expected}, found {shown(text)}")
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
            raise ValueError(f"expected {self.expected}, found {shown(text)}")
        return word


class PathKind(Kind["Path | None"]):
    """A path; a leading ``~`` is the home folder. Made absolute by the resolver."""

    metavar = "PATH"
    expected = "a path"

    def parse(self, text: str) -> Path | None:
        """See :class:`Kind`."""
        if not text.strip() or "\0" in text:
            raise ValueError(f"expected a path, found {shown(text)}")
        try:
            return Path(text).expanduser()
        except RuntimeError as error:
            raise ValueError(f"expected a path, found {shown(text)}: {error}") from None

    def format(self, value: Path | None) -> str:
        """See :class:`Kind`."""
        return "" if value is None else str(value)


class TextsKind(Kind["tuple[str, ...]"]):
    """Several texts: a repeatable flag, a YAML list, commas in the environment."""

    many = True
    expected = "a list of texts"

    @property
    def item(self) -> Kind[Any]:
        """See :class:`Kind`."""
        return TextKind()

    def parse(self, text: str) -> tuple[str, ...]:
        """See :class:`Kind`."""
        return tuple(self.item.parse(part) for part in text.split(",") if part.strip())

    def format(self, value: tuple[str, ...]) -> str:
        """See :class:`Kind`."""
        return ",".join(value)


class PathsKind(Kind["tuple[Path, ...]"]):
    """Several paths: a repeatable flag, a YAML list, commas in the environment."""

    many = True
    metavar = "PATH"
    expected = "a list of paths"

    @property
    def item(self) -> Kind[Any]:
        """See :class:`Kind`."""
        return PathKind()

    def parse(self, text: str) -> tuple[Path, ...]:
        """See :class:`Kind`."""
        return tuple(self.item.parse(part.strip()) for part in text.split(",") if part.strip())

    def format(self, value: tuple[Path, ...]) -> str:
        """See :class:`Kind`."""
        return ",".join(map(str, value))


class HostKind(Kind[str]):
    """A host name or address, without a port; brackets around an IPv6 address are taken off."""

    metavar = "HOST"
    expected = "a host name or address, without a port"

    def parse(self, text: str) -> str:
        """See :class:`Kind`."""
        host = text.strip()
        bracketed = host[:1] == "[" and host[-1:] == "]"
        inner = host[1:-1] if bracketed else host
        if ":" in inner or bracketed:
            # Imported here: hardly a start needs it.
            import ipaddress

            try:
                ipaddress.IPv6Address(inner)
            except ValueError:
                raise ValueError(f"expected {self.expected}, found {shown(text)}") from None
        elif _HOST_NAME.fullmatch(inner) is None:
            raise ValueError(f"expected {self.expected}, found {shown(text)}")
        return inner


class AddressKind(Kind["str | None"]):
    """``HOST:PORT``, an IPv6 host in brackets."""

    metavar = "HOST:PORT"
    expected = "an address like 127.0.0.1:8485"

    def parse(self, text: str) -> str | None:
        """See :class:`Kind`."""
        host, _, port = text.strip().rpartition(":")
        try:
            # A bare IPv6 host would leave it open where the port begins.
            known = HostKind().parse(host) if ":" not in host or host[0] == "[" else ""
            number = IntKind(0, 65535).parse(port) if port.isdigit() else -1
        except ValueError:
            known, number = "", -1
        if not known or number < 0:
            raise ValueError(f"expected {self.expected}, found {shown(text)}")
        return text.strip()

    def format(self, value: str | None) -> str:
        """See :class:`Kind`."""
        return "" if value is None else value


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an :class:`AddressKind`, an IPv6 host without its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class OnlyOneKind(Kind[bool]):
    """A switch that only the literal ``1`` turns on, as the environment's trace variable."""

    metavar = "1"
    expected = "exactly 1"

    def parse(self, text: str) -> bool:
        """See :class:`Kind`."""
        if text != "1":
            raise ValueError(f"expected exactly 1, found {shown(text)}")
        return True
