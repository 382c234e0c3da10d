"""Control tokens in the texts of a conversation: text, where the template's own steer the model.

A tokenizer makes a control token of every place where it reads one's name, whoever wrote it. So
each name in a message, a call or a tool is rendered as one private-use character that is in no
text, and put back as text afterwards; what the template wrote goes by other names meanwhile, which
a copy of the tokenizer knows. That copy takes the old names for text like any other.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import secrets
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from mlxceld.models.encoding import TextEncoder
from mlxceld.models.errors import ChatTemplateError
from mlxceld.models.fitting.conversation import Conversation

log = logging.getLogger(__name__)

_FORMS = re.compile("<\\|.*\\|>|<\uff5c.*\uff5c>", re.DOTALL)
"""How control tokens look in public vocabularies; some are not marked as special."""

_THINKING = frozenset({"<think>", "</think>"})

_WINDOW = 1 << 17
"""Characters that are searched at once: the search does not let other threads in."""

_STAND_INS = (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE))
_PRIVATE = re.compile("[\ue000-\uf8ff\U000f0000-\U000ffffd]")
"""Characters without a meaning, of which those stand for tokens that are in no text."""

_NAMES_FROM = 0x100000
_NAME_CHARACTERS = 8


class Guard:
    """The control tokens in one conversation's texts, each with a character that stands for it."""

    def __init__(self, stand_ins: Mapping[str, str], pattern: re.Pattern[str]) -> None:
        self._stand_ins = stand_ins
        self._pattern = pattern

    def hide_conversation(self, conversation: Conversation) -> Conversation:
        """The conversation with stand-ins in all its texts."""
        return Conversation(self._hide(conversation.messages), self._hide(conversation.tools))

    def hide_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The template's arguments, with stand-ins in lists and objects, which are documents."""
        return {
            name: value if isinstance(value, str) else self._hide(value)
            for name, value in arguments.items()
        }

    def reveal(self, text: str) -> str:
        """The text with the tokens' names in place of the stand-ins."""
        for name, stand_in in self._stand_ins.items():
            # Some templates write JSON that is all ASCII.
            escaped = json.dumps(stand_in)[1:-1]
            text = text.replace(escaped, name).replace(stand_in, name)
        return text

    def _hide(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._pattern.sub(lambda found: self._stand_ins[found[0]], value)
        if isinstance(value, Mapping):
            return {self._hide(key): self._hide(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._hide(inner) for inner in value]
        return value


class ControlTokens:
    """The control tokens of one tokenizer.

    They are its special tokens, and added ones that look like some (``<|…|>``); not the markers
    of thinking, which clients send back within texts and templates look for there. ``tokenizer``
    is mlx-lm's TokenizerWrapper; ``written`` is the template's source. May be used from any
    thread.
    """

    def __init__(self, tokenizer: Any, written: str = "") -> None:
        self._tokenizer = tokenizer
        self._written = written
        added = tokenizer.added_tokens_decoder.values()
        exempt = _THINKING | {
            getattr(tokenizer, name, None) for name in ("think_start", "think_end")
        }
        self._names = sorted(
            str(entry.content)
            for entry in added
            if entry.content not in exempt
            and (entry.special or _FORMS.fullmatch(str(entry.content)))
        )
        self._longest = max(map(len, self._names), default=0)
        self._pattern = _any_of(self._names)
        self._added_pattern = _any_of([str(entry.content) for entry in added])
        self._lock = threading.Lock()
        self._copy: _Renamed | None = None
        self._can_rename = _can_rename(getattr(tokenizer, "backend_tokenizer", None), self._names)
        if self._names and not self._can_rename:
            log.warning("control tokens in texts steer the model: its tokenizer cannot be copied")

    def guard(
        self, conversation: Conversation, arguments: Mapping[str, Any] | None = None
    ) -> Guard | None:
        """A guard for the control tokens in a conversation's texts, None where there are none."""
        if not self._names or not self._can_rename:
            return None
        texts = [conversation.messages, conversation.tools]
        texts += [value for value in (arguments or {}).values() if not isinstance(value, str)]
        found = {name for text in _strings(texts) for name in self._found_in(text)}
        if not found:
            return None
        taken = {c for text in (self._written, *_strings(texts)) for c in _PRIVATE.findall(text)}
        # A token has the same stand-in in every turn, unless a text has that character.
        free = (chr(c) for c in _STAND_INS[len(self._names) :] if chr(c) not in taken)
        stand_ins: dict[str, str] = {}
        for name, code in zip(self._names, _STAND_INS, strict=False):
            if name in found:
                stand_in = next(free, None) if chr(code) in taken else chr(code)
                if stand_in is None:
                    raise ChatTemplateError("the texts have every private-use character there is")
                stand_ins[name] = stand_in
        return Guard(stand_ins, self._pattern)

    def _found_in(self, text: str) -> Iterator[str]:
        for start in range(0, len(text), _WINDOW):
            end = start + _WINDOW + self._longest
            for match in self._pattern.finditer(text, start, end):
                yield match[0]

    def encode(self, rendering: str, guard: Guard) -> list[int]:
        """The ids of a rendering under a guard: names put back are text, all others tokens."""
        with self._lock:
            while self._copy is None or self._copy.prefix in rendering:
                self._copy = _Renamed(self._tokenizer, self._names)
            renamed = self._copy
        names = renamed.names
        own = self._added_pattern.sub(lambda m: names.get(m[0], m[0]), rendering)
        return renamed.encode(guard.reveal(own))


class _Renamed:
    """A copy of a tokenizer in which some added tokens have names that nobody can know."""

    def __init__(self, tokenizer: Any, names: list[str]) -> None:
        self.prefix = "".join(
            chr(_NAMES_FROM + secrets.randbelow(0xFFFD)) for _ in range(_NAME_CHARACTERS)
        )
        self.names = {
            name: f"{self.prefix}{chr(_NAMES_FROM + number)}" for number, name in enumerate(names)
        }
        inner = getattr(tokenizer, "_tokenizer", tokenizer)
        original = inner.backend_tokenizer
        backend = _with_model_of(original, self.names)
        if _reads(backend, original, names):
            backend = _without_names(original, self.names)
        added = original.get_added_tokens_decoder()
        self._ids = {
            backend.token_to_id(self.names.get(entry.content, entry.content)): number
            for number, entry in added.items()
        }
        tokenizer = copy.copy(inner)
        tokenizer._tokenizer = backend
        self._encoder = TextEncoder(tokenizer)

    def encode(self, text: str) -> list[int]:
        """The ids that the original has for the tokens by their new names, and for all else."""
        ids = self._encoder.encode(text, add_special_tokens=False)
        return [self._ids.get(token, token) for token in ids]


def _with_model_of(original: Any, names: Mapping[str, str]) -> Any:
    """A fast tokenizer that shares another one's model and has its tokens by other names."""
    from tokenizers import Tokenizer

    made = Tokenizer(original.model)
    if original.normalizer is not None:
        made.normalizer = original.normalizer
    if original.pre_tokenizer is not None:
        made.pre_tokenizer = original.pre_tokenizer
    made.add_tokens(
        [
            _renamed(entry, names.get(entry.content, entry.content))
            for entry in original.get_added_tokens_decoder().values()
        ]
    )
    return made


def _renamed(entry: Any, name: str) -> Any:
    from tokenizers import AddedToken

    return AddedToken(
        name,
        single_word=entry.single_word,
        lstrip=entry.lstrip,
        rstrip=entry.rstrip,
        normalized=entry.normalized,
        special=entry.special,
    )


def _reads(backend: Any, original: Any, names: list[str]) -> bool:
    """Whether the model itself makes one of these tokens of its name."""
    ids = {original.token_to_id(name) for name in names}
    texts = (text for name in names for text in (name, f" {name}", f"a{name}\n"))
    return any(not ids.isdisjoint(backend.encode(text).ids) for text in texts)


def _without_names(original: Any, names: Mapping[str, str]) -> Any:
    """The same with a model of its own, which does not know the old names either."""
    from tokenizers import Tokenizer

    description = json.loads(original.to_str())
    for entry in description["added_tokens"]:
        entry["content"] = names.get(entry["content"], entry["content"])
    # It would name tokens that are not there any more, and adds nothing here.
    description["post_processor"] = None
    model = description["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(token, token): number for token, number in vocabulary.items()}
    else:
        model["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
    if model.get("unk_token") is not None:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if _merged(pair) not in names]
    return Tokenizer.from_str(json.dumps(description))


def _merged(pair: str | list[str]) -> str:
    return pair.replace(" ", "", 1) if isinstance(pair, str) else "".join(pair)


def _can_rename(backend: Any, names: list[str]) -> bool:
    """Whether a fast tokenizer would read the tokens by any name, as they are written."""
    if backend is None:
        return False
    normalizer = backend.normalizer
    return normalizer is None or not any(
        entry.normalized and normalizer.normalize_str(entry.content) != entry.content
        for entry in backend.get_added_tokens_decoder().values()
        if entry.content in names
    )


def _any_of(names: list[str]) -> re.Pattern[str]:
    """Finds the names, the longest of those that begin at one place."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _strings(key)
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)
