"""Tool calls as models write them: which form a model uses, and reading one call's text.

mlx-lm knows most forms and picks one by the chat template; added here are those it leaves out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxceld.models.untyped_calls import parse_qwen_coder, retyped

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call of a function; ``arguments`` is JSON text, ``id`` the model's own if it gave one."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a model marks its calls.

    A call stands between ``start`` and ``end``; an empty ``end`` means that everything to the end
    of the answer is calls. ``bare`` says that an answer which begins with ``{`` may be one too.
    ``parse`` takes the text between the markers and raises ValueError where it is no call.
    ``closed`` tells whether a body is whole: the end marker may stand in a string of it.
    """

    name: str
    start: str
    end: str
    parse: Callable[[str, Tools], list[ParsedCall]]
    bare: bool = False
    closed: Callable[[str], bool] = lambda body: True


def call_format(tokenizer: Any) -> CallFormat | None:
    """The form that a model's template or vocabulary shows, None if neither shows one.

    ``tokenizer`` is mlx-lm's TokenizerWrapper.
    """
    if getattr(tokenizer, "has_tool_calling", False):
        parser = tokenizer.tool_parser
        name = str(getattr(parser, "__module__", "")).rpartition(".")[2] or "mlx-lm"
        return from_parser(name, tokenizer.tool_call_start, tokenizer.tool_call_end, parser)
    vocabulary = tokenizer.get_vocab()
    if _DEEPSEEK_START in vocabulary:
        return DEEPSEEK
    if _LLAMA_START in vocabulary:
        return LLAMA
    return None


def from_parser(name: str, start: str, end: str, parser: Callable[..., Any]) -> CallFormat:
    """A form that one of mlx-lm's parsers reads; ``name`` is that parser's module."""
    if name == "qwen3_coder":
        parser = parse_qwen_coder
    elif name in _BARE_TEXT:
        parser = retyped(parser)

    def parse(text: str, tools: Tools) -> list[ParsedCall]:
        try:
            found = parser(text, [dict(tool) for tool in tools])
        except Exception as error:
            # The parsers raise whatever the text brings about.
            raise ValueError(f"{type(error).__name__}: {error}") from error
        return [parsed(call) for call in (found if isinstance(found, list) else [found])]

    return CallFormat(name, start, end, parse, closed=_CLOSED.get(name, is_json_closed))


def is_json_closed(body: str) -> bool:
    """Whether the end of ``body`` is not within a JSON string; text that is no JSON is closed."""
    begun = body.lstrip()
    if not begun.startswith(("{", "[")):
        return True
    return sum(1 for found in _QUOTES.finditer(begun) if found[0] == '"') % 2 == 0


def _is_qwen_coder_closed(body: str) -> bool:
    """Whether the last function that was opened is closed."""
    return body.rstrip().endswith("</function>") or "<function=" not in body


def _is_balanced(opening: str, closing: str) -> Callable[[str], bool]:
    return lambda body: body.count(opening) <= body.count(closing)


_QUOTES = re.compile(r'\\.|"', re.DOTALL)
"""Quotes, and what a backslash makes something else."""

_BARE_TEXT = frozenset({"glm47", "laguna", "longcat", "minicpm5", "minimax_m2"})
"""mlx-lm's parsers of arguments that are bare text."""

_CLOSED: Mapping[str, Callable[[str], bool]] = {
    "qwen3_coder": _is_qwen_coder_closed,
    "glm47": _is_balanced("<arg_value>", "</arg_value>"),
    "laguna": _is_balanced("<arg_value>", "</arg_value>"),
    "longcat": _is_balanced("<longcat_arg_value>", "</longcat_arg_value>"),
    "minimax_m2": _is_balanced("<invoke", "</invoke>"),
    "minicpm5": _is_balanced("<param", "</param>"),
}


def parsed(call: Any) -> ParsedCall:
    """A parser's object as a call; raises ValueError if it is none."""
    if not isinstance(call, Mapping) or not isinstance(call.get("name"), str) or not call["name"]:
        raise ValueError("a call has to be an object with a name")
    arguments = call.get("arguments", call.get("parameters"))
    if isinstance(arguments, str):
        arguments = strict_json(arguments or "{}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise ValueError("a call's arguments have to be an object")  # noqa: TRY004
    given = call.get("id")
    return ParsedCall(
        call["name"],
        json.dumps(arguments, ensure_ascii=False, allow_nan=False),
        given if isinstance(given, str) and given else None,
    )


def strict_json(text: str) -> Any:
    """JSON without the constants that Python takes besides; raises ValueError for other text."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON value")


def _parse_json(text: str, tools: Tools) -> list[ParsedCall]:
    """One JSON object, or a list of them."""
    found = strict_json(text)
    return [parsed(call) for call in (found if isinstance(found, list) else [found])]


def _parse_llama(text: str, tools: Tools) -> list[ParsedCall]:
    """Objects with ``name`` and ``parameters``, parted by semicolons."""
    decoder = json.JSONDecoder(parse_constant=_no_constant)
    calls, at = [], 0
    text = text.strip()
    while at < len(text):
        found, at = decoder.raw_decode(text, at)
        calls.append(parsed(found))
        rest = text[at:].lstrip("; \n\t")
        at = len(text) - len(rest)
    if not calls:
        raise ValueError("there is no call")
    return calls


_DEEPSEEK_START = "<｜tool▁calls▁begin｜>"  # noqa: RUF001 the model's own characters
_DEEPSEEK_END = "<｜tool▁calls▁end｜>"  # noqa: RUF001
_DEEPSEEK_CALL = re.compile(r"<｜tool▁call▁begin｜>(.*?)<｜tool▁call▁end｜>", re.DOTALL)  # noqa: RUF001
_DEEPSEEK_PARTS = "<｜tool▁sep｜>"  # noqa: RUF001
_FENCED = re.compile(r"\A(\S+)\s*```json\s*(.*?)\s*```\s*\Z", re.DOTALL)


def _parse_deepseek(text: str, tools: Tools) -> list[ParsedCall]:
    """Both of the family's forms: ``function<sep>name`` with fenced JSON, ``name<sep>{…}``."""
    bodies = _DEEPSEEK_CALL.findall(text)
    if not bodies:
        raise ValueError("there is no call")
    calls = []
    for body in bodies:
        first, separator, rest = body.partition(_DEEPSEEK_PARTS)
        if not separator:
            raise ValueError("the call's name is missing")
        fenced = _FENCED.match(rest)
        name, arguments = (fenced[1], fenced[2]) if fenced else (first.strip(), rest)
        calls.append(parsed({"name": name, "arguments": arguments}))
    return calls


_LLAMA_START = "<|python_tag|>"

HERMES = CallFormat("hermes", "<tool_call>", "</tool_call>", _parse_json, closed=is_json_closed)
"""The form that models are told of whose template does not render tools."""

LLAMA = CallFormat("llama", _LLAMA_START, "", _parse_llama, bare=True)
DEEPSEEK = CallFormat("deepseek", _DEEPSEEK_START, _DEEPSEEK_END, _parse_deepseek)
