"""Calls between tags, read in one pass: GLM's, LongCat's, Muse's and Kimi K3's.

mlx-lm reads these with regular expressions whose time grows with the square or the cube of a text
of unclosed tags, which a model may well write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlxceld.models.typed_arguments import typed_arguments, unquoted

Tools = Sequence[Mapping[str, Any]]

_ATTRIBUTE = re.compile(r'(\w{1,64})="([^"]*)"')
_INVOKE, _INVOKE_END = "<atem:invoke", "</atem:invoke>"
_PARAMETER, _PARAMETER_END = "<atem:parameter", "</atem:parameter>"
_BETWEEN = re.compile(r"(?:\\n|\s)*")


class KeysAndValues:
    """``NAME<key>K</key><value>V</value>…``, with the names of both tags."""

    def __init__(self, key: str, value: str) -> None:
        self._key, self._value = key, value

    def has_arguments(self, text: str) -> bool:
        """Whether ``text`` is of this form; a call without arguments does not show it."""
        return f"<{self._key}>" in text

    def parse(self, text: str, tools: Tools) -> dict[str, Any]:
        """The call in a text that :meth:`has_arguments`."""
        name = text.partition(f"<{self._key}>")[0].strip()
        arguments: dict[str, str] = {}
        at = 0
        while (found := _between(text, at, f"<{self._key}>", f"</{self._key}>")) is not None:
            key, at = found
            space = _BETWEEN.match(text, at)
            start = space.end() if space else at
            if not text.startswith(f"<{self._value}>", start):
                continue
            value = _between(text, start, f"<{self._value}>", f"</{self._value}>")
            if value is None:
                break
            arguments[key.strip()] = value[0].strip()
            at = value[1]
        return {"name": name, "arguments": typed_arguments(arguments, name, tools)}


GLM = KeysAndValues("arg_key", "arg_value")
LONGCAT = KeysAndValues("longcat_arg_key", "longcat_arg_value")


def parse_muse(text: str, tools: Tools) -> list[dict[str, Any]]:
    """``<atem:invoke name="N"><atem:parameter name="K">V</atem:parameter>…</atem:invoke>``.

    Strings come as they are or as JSON. Raises ValueError where there is no call.
    """
    calls = []
    at = 0
    while (head := _head(text, at, len(text), _INVOKE)) is not None:
        name, start = _attribute(head[0], "name"), head[1]
        end = _invoke_end(text, start)
        arguments: dict[str, str] = {}
        at = start
        while (parameter := _head(text, at, end, _PARAMETER)) is not None:
            value_end = text.find(_PARAMETER_END, parameter[1], end)
            if value_end < 0:
                break
            value = unquoted(text[parameter[1] : value_end])
            arguments[_attribute(parameter[0], "name")] = value
            at = value_end + len(_PARAMETER_END)
        calls.append({"name": name, "arguments": typed_arguments(arguments, name, tools)})
        at = end
    if not calls:
        raise ValueError("there is no call")
    return calls


def _invoke_end(text: str, at: int) -> int:
    """Where a call's closing tag stands outside of its parameters; the text's end without one."""
    end = text.find(_INVOKE_END, at)
    while end >= 0:
        inner = text.find(_PARAMETER, at, end)
        after = text.find(_PARAMETER_END, inner) if inner >= 0 else -1
        if after < 0:
            return end
        at = after + len(_PARAMETER_END)
        if at > end:
            end = text.find(_INVOKE_END, at)
    return len(text)


def _head(text: str, at: int, stop: int, tag: str) -> tuple[str, int] | None:
    """The next tag's attributes, and where its body begins."""
    start = text.find(tag, at, stop)
    end = text.find(">", start, stop) if start >= 0 else -1
    return None if end < 0 else (text[start + len(tag) : end], end + 1)


def parse_kimi_k3(text: str, tools: Tools) -> list[dict[str, Any]]:
    """``<|open|>call tool="N"<|sep|>…<|close|>call<|sep|>`` with arguments or one JSON object.

    Raises ValueError where there is no call.
    """
    calls = []
    for attributes, body in _parts(text, "call"):
        name = _attribute(attributes, "tool")
        whole = next(_parts(body, "json"), None)
        if whole is not None:
            arguments = json.loads(whole[1])
        else:
            arguments = dict(
                _kimi_argument(given, value) for given, value in _parts(body, "argument")
            )
        calls.append({"name": name, "arguments": arguments})
    if not calls:
        raise ValueError("there is no call")
    return calls


def _kimi_argument(attributes: str, value: str) -> tuple[str, Any]:
    given = dict(_ATTRIBUTE.findall(attributes))
    key = _attribute(attributes, "key")
    if given.get("type", "string") == "string":
        return key, value
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _attribute(attributes: str, name: str) -> str:
    for key, value in _ATTRIBUTE.findall(attributes):
        if key == name:
            return str(value.replace("&quot;", '"').replace("&amp;", "&"))
    raise ValueError(f"the attribute {name} is missing")


def _between(text: str, at: int, opening: str, closing: str) -> tuple[str, int] | None:
    """What the next pair of tags encloses, and where it ends; None if there is none."""
    start = text.find(opening, at)
    if start < 0:
        return None
    start += len(opening)
    end = text.find(closing, start)
    return None if end < 0 else (text[start:end], end + len(closing))


def _parts(text: str, kind: str) -> Iterator[tuple[str, str]]:
    """Attributes and body of each ``<|open|>KIND…<|sep|>…<|close|>KIND<|sep|>``."""
    opening, closing, at = f"<|open|>{kind}", f"<|close|>{kind}<|sep|>", 0
    while (start := text.find(opening, at)) >= 0:
        head_end = text.find("<|sep|>", start)
        end = text.find(closing, head_end) if head_end >= 0 else -1
        if end < 0:
            return
        yield text[start + len(opening) : head_end], text[head_end + len("<|sep|>") : end]
        at = end + len(closing)
