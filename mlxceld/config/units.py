"""Sizes and durations as people write them, and back."""

from __future__ import annotations

import re

ZERO_WORDS = ("never", "off")
"""Words for 0 where 0 means that."""

MAX_SIZE = 2**63 - 1
"""The largest size, in bytes: what a file offset or a 64-bit counter holds."""

MAX_DURATION = 10 * 365 * 24 * 3600.0
"""The longest duration, in seconds (ten years): clocks and waits overflow far above it."""

_SIZE_UNITS = {
    "": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_DURATION_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_SIZE = re.compile(r"(?P<number>\d{1,19})(?P<unit>[A-Za-z]*)", re.ASCII)
_DURATION = re.compile(r"(?P<whole>\d{1,19})(?:\.(?P<parts>\d{1,9}))?(?P<unit>[A-Za-z]*)", re.ASCII)


def shown(text: str) -> str:
    """A found text for a message: quoted, on one line, not endless."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def parse_size(text: str) -> int:
    """Bytes from ``8GiB`` (2^33), ``8GB`` (8e9) or plain digits; ``off`` and ``never`` are 0.

    Raises ValueError with what was expected.
    """
    if text.strip().lower() in ZERO_WORDS:
        return 0
    match = _SIZE.fullmatch(text.strip())
    if match is None or match["unit"] not in _SIZE_UNITS:
        raise ValueError(
            f"expected a size like 8GiB, 500MB or a number of bytes, found {shown(text)}"
        )
    size = int(match["number"]) * _SIZE_UNITS[match["unit"]]
    if size > MAX_SIZE:
        raise ValueError(f"expected at most {MAX_SIZE} bytes, found {shown(text)}")
    return size


def format_size(size: int) -> str:
    """A size that :func:`parse_size` reads back as the same number, in IEC units where exact."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _SIZE_UNITS[unit] == 0:
            return f"{size // _SIZE_UNITS[unit]}{unit}"
    return str(size)


def readable_bytes(count: int) -> str:
    """A size for people, rounded to three digits or so: ``1.5 GiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} PiB"


def parse_duration(text: str) -> float:
    """Seconds from ``90s``, ``15m``, ``2h`` or plain digits; ``off`` and ``never`` are 0.

    Raises ValueError with what was expected.
    """
    if text.strip().lower() in ZERO_WORDS:
        return 0.0
    match = _DURATION.fullmatch(text.strip())
    if match is None or match["unit"] not in _DURATION_UNITS:
        raise ValueError(
            f"expected a duration like 90s, 15m, 2h or a number of seconds, found {shown(text)}"
        )
    number, scale = _scaled(match)
    seconds = number * _DURATION_UNITS[match["unit"]] / scale
    if seconds > MAX_DURATION:
        raise ValueError(f"expected at most {format_duration(MAX_DURATION)}, found {shown(text)}")
    return seconds


def format_duration(seconds: float) -> str:
    """A duration that :func:`parse_duration` reads back as the same number, to the nanosecond."""
    for unit in ("h", "m"):
        if seconds and seconds % _DURATION_UNITS[unit] == 0:
            return f"{int(seconds / _DURATION_UNITS[unit])}{unit}"
    return f"{int(seconds)}s" if seconds == int(seconds) else f"{seconds:.9f}".rstrip("0") + "s"


def _scaled(match: re.Match[str]) -> tuple[int, int]:
    """The number as a fraction of whole numbers: 0.07 m are 4.2 s, and nothing is lost."""
    parts = match["parts"] or ""
    return int(match["whole"] + parts), int(10 ** len(parts))
