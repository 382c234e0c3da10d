"""Tool calls as models write them: which form a model uses, and reading one call's text.

mlx-lm knows most forms and picks one by the chat template; added here are those it leaves out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxceld.models.gemma_calls import gemma_parser, is_gemma_closed
from mlxceld.models.sectioned_calls import (
    DEEPSEEK_END,
    DEEPSEEK_START,
    is_deepseek_closed,
    is_kimi_k2_closed,
    parse_deepseek,
    parse_kimi_k2,
)
from mlxceld.models.strict_json import quotes_in, strict_decoder, strict_json
from mlxceld.models.tagged_calls import (
    GLM,
    LONGCAT,
    KeysAndValues,
    parse_kimi_k3,
    parse_muse,
)
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
    ``whole`` tells whether a body that the answer ends in is a whole call without its end marker;
    reading JSON tells that by itself, while text between tags may have been cut anywhere.
    """

    name: str
    start: str
    end: str
    parse: Callable[[str, Tools], list[ParsedCall]]
    bare: bool = False
    closed: Callable[[str], bool] = lambda body: True
    whole: Callable[[str], bool] = lambda body: True


def call_format(tokenizer: Any) -> CallFormat | None:
    """The form that a model's template or vocabulary shows, None if neither shows one.

    ``tokenizer`` is mlx-lm's TokenizerWrapper.
    """
    if getattr(tokenizer, "has_tool_calling", False):
        parser = tokenizer.tool_parser
        name = str(getattr(parser, "__module__", "")).rpartition(".")[2] or "mlx-lm"
        return from_parser(name, tokenizer.tool_call_start, tokenizer.tool_call_end, parser)
    vocabulary = tokenizer.get_vocab()
    if DEEPSEEK_START in vocabulary:
        return DEEPSEEK
    if _LLAMA_START in vocabulary:
        return LLAMA
    return None


def from_parser(name: str, start: str, end: str, parser: Callable[..., Any]) -> CallFormat:
    """A form that one of mlx-lm's parsers reads; ``name`` is that parser's module."""
    if name in _OWN:
        parser = _OWN[name]
    elif name in _KEYS_AND_VALUES:
        parser = _tagged(_KEYS_AND_VALUES[name], retyped(parser))
    elif name in _BARE_TEXT:
        parser = retyped(parser)

    def parse(text: str, tools: Tools) -> list[ParsedCall]:
        try:
            if name in _BARE_NAME:
                _check_bare_name(text, tools)
            found = parser(text, [dict(tool) for tool in tools])
            return [parsed(call) for call in (found if isinstance(found, list) else [found])]
        except Exception as error:
            # The parsers raise whatever the text brings about.
            raise ValueError(f"{type(error).__name__}: {error}") from error

    return CallFormat(
        name,
        start,
        end,
        parse,
        closed=_CLOSED.get(name, is_json_closed),
        whole=_WHOLE.get(name, lambda body: True),
    )


def _tagged(form: KeysAndValues, other: Callable[..., Any]) -> Callable[[str, Tools], Any]:
    """``form`` where its tags are; ``other`` reads calls without arguments, and JSON."""

    def parse(text: str, tools: Tools) -> Any:
        return form.parse(text, tools) if form.has_arguments(text) else other(text, tools)

    return parse


def is_json_closed(body: str) -> bool:
    """Whether the end of ``body`` is not within a JSON string; text that is no JSON is closed."""
    begun = body.lstrip()
    return not begun.startswith(("{", "[")) or quotes_in(begun, 0, len(begun)) % 2 == 0


def _is_qwen_coder_closed(body: str) -> bool:
    """Whether the last function that was opened is closed."""
    return body.rstrip().endswith("</function>") or "<function=" not in body


def _is_balanced(opening: str, closing: str) -> Callable[[str], bool]:
    return lambda body: body.count(opening) <= body.count(closing)


def _ends_with(closing: str) -> Callable[[str], bool]:
    return lambda body: body.rstrip().endswith(closing)


_BARE_NAME = frozenset({"glm47", "laguna"})
"""Those that take any text for a name and its arguments."""

_BARE_TEXT = frozenset({"minicpm5", "minimax_m2"})
"""mlx-lm's parsers of arguments that are bare text."""

_KEYS_AND_VALUES: Mapping[str, KeysAndValues] = {"glm47": GLM, "laguna": GLM, "longcat": LONGCAT}

_FUNCTION_GEMMA, _GEMMA4 = "<escape>", '<|"|>'

_CLOSED: Mapping[str, Callable[[str], bool]] = {
    "qwen3_coder": _is_qwen_coder_closed,
    "glm47": _is_balanced("<arg_value>", "</arg_value>"),
    "laguna": _is_balanced("<arg_value>", "</arg_value>"),
    "longcat": _is_balanced("<longcat_arg_value>", "</longcat_arg_value>"),
    "minimax_m2": _is_balanced("<invoke", "</invoke>"),
    "minicpm5": _is_balanced("<param", "</param>"),
    "muse_spark": _is_balanced("<atem:parameter", "</atem:parameter>"),
    "kimi_k2": is_kimi_k2_closed,
    "function_gemma": is_gemma_closed(_FUNCTION_GEMMA),
    "gemma4": is_gemma_closed(_GEMMA4),
}

_WHOLE: Mapping[str, Callable[[str], bool]] = {
    "qwen3_coder": _ends_with("</function>"),
    "minimax_m2": _ends_with("</invoke>"),
    "muse_spark": _ends_with("</atem:invoke>"),
    "kimi_k3": _ends_with("<|close|>call<|sep|>"),
    # Nothing but the end marker tells that no more arguments follow.
    "glm47": lambda body: False,
    "laguna": lambda body: False,
    "longcat": lambda body: False,
    "minicpm5": lambda body: False,
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
    try:
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"the arguments are no JSON: {error}") from error
    return ParsedCall(
        _whole_characters(call["name"]),
        _whole_characters(written),
        given if isinstance(given, str) and given else None,
    )


def _whole_characters(text: str) -> str:
    """Text in which U+FFFD stands for each half of a surrogate pair, which UTF-8 cannot write."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _parse_json(text: str, tools: Tools) -> list[ParsedCall]:
    """One JSON object, or a list of them."""
    found = strict_json(text)
    return [parsed(call) for call in (found if isinstance(found, list) else [found])]


_MISTRAL_HEAD = re.compile(r"\s*([\w.-]{1,128})\s*(?:\[CALL_ID\]\s*([\w-]+)\s*)?\[ARGS\]\s*")


def _parse_mistral(text: str, tools: Tools) -> list[dict[str, Any]]:
    """A list of objects, or ``NAME[ARGS]{…}`` once or several times, perhaps with an id."""
    if text.lstrip().startswith("["):
        found = strict_json(text)
        return found if isinstance(found, list) else [found]
    decoder = strict_decoder()
    calls: list[dict[str, Any]] = []
    at = 0
    while head := _MISTRAL_HEAD.match(text, at):
        arguments, at = decoder.raw_decode(text, head.end())
        calls.append({"name": head[1], "id": head[2], "arguments": arguments})
    if text[at:].strip() or not calls:
        raise ValueError("there is something else than calls")
    return calls


def _check_bare_name(text: str, tools: Tools) -> None:
    """Without a tag of the form, text between the markers is a call only by a tool's name."""
    if "arg_key>" in text or text.lstrip().startswith(("{", "[")):
        return
    words = text.split(None, 1)
    if not words or all(words[0] != tool["function"]["name"] for tool in tools):
        raise ValueError("no tool has this name")


def _parse_deepseek(text: str, tools: Tools) -> list[ParsedCall]:
    return [parsed(call) for call in parse_deepseek(text)]


def _parse_llama(text: str, tools: Tools) -> list[ParsedCall]:
    """Objects with ``name`` and ``parameters``, parted by semicolons."""
    decoder = strict_decoder()
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


_OWN: Mapping[str, Callable[[str, Tools], Any]] = {
    "qwen3_coder": parse_qwen_coder,
    "mistral": _parse_mistral,
    "muse_spark": parse_muse,
    "kimi_k2": parse_kimi_k2,
    "kimi_k3": parse_kimi_k3,
    "function_gemma": gemma_parser(_FUNCTION_GEMMA),
    "gemma4": gemma_parser(_GEMMA4),
}
"""Forms that mlx-lm's own parsers read wrongly, or in more time than their length asks for."""

_LLAMA_START = "<|python_tag|>"

HERMES = CallFormat("hermes", "<tool_call>", "</tool_call>", _parse_json, closed=is_json_closed)
"""The form that models are told of whose template does not render tools."""

LLAMA = CallFormat("llama", _LLAMA_START, "", _parse_llama, bare=True)
DEEPSEEK = CallFormat(
    "deepseek", DEEPSEEK_START, DEEPSEEK_END, _parse_deepseek, closed=is_deepseek_closed
)
