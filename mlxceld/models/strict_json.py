"""JSON as it is defined, and not as Python takes it; where its strings begin and end."""

from __future__ import annotations

import json
import re
from typing import Any

_QUOTES = re.compile(r'\\.|"', re.DOTALL)
"""Quotes, and what a backslash makes something else."""


def strict_json(text: str) -> Any:
    """JSON without the constants that Python takes besides; raises ValueError for other text."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def strict_decoder() -> json.JSONDecoder:
    """A decoder for JSON within a text, without those constants."""
    return json.JSONDecoder(parse_constant=_no_constant)


def quotes_in(text: str, start: int, end: int) -> int:
    """How many quotes begin or end a JSON string between two places of a text."""
    return sum(1 for found in _QUOTES.finditer(text, start, end) if found[0] == '"')


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON value")
