"""Calls that stand in a section, each between markers of its own: DeepSeek's and Kimi K2's.

Their arguments are JSON, read as such, so that a marker in a string is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlxceld.models.strict_json import quotes_in, strict_decoder

Tools = Sequence[Mapping[str, Any]]

DEEPSEEK_START = "<｜tool▁calls▁begin｜>"  # noqa: RUF001 the model's own characters
DEEPSEEK_END = "<｜tool▁calls▁end｜>"  # noqa: RUF001
_DEEPSEEK_CALL = "<｜tool▁call▁begin｜>"  # noqa: RUF001
_DEEPSEEK_CALL_END = "<｜tool▁call▁end｜>"  # noqa: RUF001
_DEEPSEEK_HEAD = re.compile(
    _DEEPSEEK_CALL + r"\s*([^<\s]{1,128})\s*<｜tool▁sep｜>\s*(?:([^<\s`]{1,128})\s*```json\s*)?"  # noqa: RUF001
)
_DEEPSEEK_TAIL = re.compile(r"\s*(?:```\s*)?" + _DEEPSEEK_CALL_END)

_KIMI_CALL, _KIMI_CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_KIMI_HEAD = re.compile(
    re.escape(_KIMI_CALL)
    + r"\s*((?:functions\.)?([^<\s]{1,128}):\d{1,9})\s*<\|tool_call_argument_begin\|>\s*"
)
_KIMI_TAIL = re.compile(r"\s*" + re.escape(_KIMI_CALL_END))


def parse_deepseek(text: str) -> list[dict[str, Any]]:
    """Both of the family's forms: ``function<sep>name`` with fenced JSON, ``name<sep>{…}``.

    Raises ValueError where there is no call, or one is not whole.
    """
    return [
        {"name": head[2] or head[1], "arguments": arguments}
        for head, arguments in _calls(text, _DEEPSEEK_CALL, _DEEPSEEK_HEAD, _DEEPSEEK_TAIL)
    ]


def parse_kimi_k2(text: str, tools: Tools) -> list[dict[str, Any]]:
    """``functions.NAME:0``, which is the call's id, and JSON; raises ValueError like DeepSeek's."""
    return [
        {"id": head[1], "name": head[2], "arguments": arguments}
        for head, arguments in _calls(text, _KIMI_CALL, _KIMI_HEAD, _KIMI_TAIL)
    ]


def is_deepseek_closed(body: str) -> bool:
    """Whether the last call is closed, and no string of it open."""
    return _is_closed(body, _DEEPSEEK_CALL_END)


def is_kimi_k2_closed(body: str) -> bool:
    """Whether the last call is closed, and no string of it open."""
    return _is_closed(body, _KIMI_CALL_END)


def _is_closed(body: str, end: str) -> bool:
    return body.rstrip().endswith(end) and not quotes_in(body, 0, len(body)) % 2


def _calls(
    text: str, opening: str, heads: re.Pattern[str], tails: re.Pattern[str]
) -> Iterator[tuple[re.Match[str], Any]]:
    """Each call's head and its arguments, which are an empty object where nothing is written."""
    decoder = strict_decoder()
    at = text.find(opening)
    if at < 0:
        raise ValueError("there is no call")
    while at >= 0:
        head = heads.match(text, at)
        if head is None:
            raise ValueError("the call's name is missing")
        arguments: Any = {}
        at = head.end()
        if tails.match(text, at) is None:
            arguments, at = decoder.raw_decode(text, at)
        tail = tails.match(text, at)
        if tail is None:
            raise ValueError("the call's end is missing")
        yield head, arguments
        at = text.find(opening, tail.end())
