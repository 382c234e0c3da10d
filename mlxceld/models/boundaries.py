"""Where a rendered conversation can be resumed: token positions that the next turn repeats.

Found by rendering, never by looking for a text: what two renderings begin with in common, token
for token, is what a cache may keep. Templates may drop thinking, move tools, merge system turns
or strip text; whatever they do shows in the renderings. No MLX in here.
"""

from __future__ import annotations

import json
import logging
import string
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from mlxceld.models.errors import ChatTemplateError
from mlxceld.models.lru import Lru

log = logging.getLogger(__name__)

BoundaryKind = Literal["head", "boundary", "completion", "prefetch"]

_SYSTEM_ROLES = frozenset({"system", "developer"})

_REPLY = "Right."

_TURNS = ("And then?", "\n\nSo what?")
"""Two next turns that differ from their first character, stripped or not."""

_OPENINGS = (
    *string.ascii_letters,
    *string.digits,
    *string.punctuation,
    *("\n", "\n\n", "\n\n\n", "\nx", "\n\nx", "\n x", " ", " x", "  x", "\t", "\tx", "\r\nx"),
    *("So", "I", "The", "yes", "no", "1.", "```\nx\n```", "<b>", "**x**", "é", "你", "😀"),
)
"""Beginnings of texts: each may fuse with the end of what the template writes before it."""

_HEADS_KEPT = 64
_SEAMS_KEPT = 256

_FUSED = 4
"""Tokens that a turn's first characters may change in what comes before them."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """A prefix of the prompt, ``tokens`` long, that later prompts begin with too.

    *head* is the end of system and tools, common to conversations; *boundary* the end of the
    history before the generation prompt, as far as a next turn of the user repeats it. Where tool
    results repeat more than a turn of the user does (thinking stays until that turn, say),
    *completion* is the end of the history for them. *prefetch* is the end of a history that was
    rendered ahead of its next turn.
    """

    tokens: int
    kind: BoundaryKind


@dataclass(frozen=True, slots=True)
class FoundBoundaries:
    """A prompt's boundaries, shortest first, each before its last token.

    A next turn of the user repeats the first ``repeated`` tokens, if the reply's text begins like
    most do: not all of them, where history is written in another way than what a reply follows.
    """

    marks: tuple[Boundary, ...] = ()
    repeated: int = 0


class Render(Protocol):
    """Renders a conversation to token ids; raises ChatTemplateError where the template refuses."""

    def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
        add_generation_prompt: bool,
    ) -> list[int]:
        """The token ids of ``messages``, with or without a generation prompt."""


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    low, high = 0, min(len(one), len(other))
    # Slices compare at the speed of C; most of the time the first one decides.
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True)
class _Seam:
    """The end of a prompt that a next turn may not repeat: ``generation`` is its last part.

    ``loose`` tokens before it may fuse with a reply's first characters.
    """

    generation: tuple[int, ...]
    loose: int


class BoundaryFinder:
    """Finds the boundaries of one chat template's prompts; may be used from any thread.

    A prompt costs one more rendering of its conversation. Heads and the ends of prompts are
    remembered, so that they are rendered once for many prompts.
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        self._lock = threading.Lock()
        self._heads: Lru[list[int]] = Lru(_HEADS_KEPT)
        self._seams: Lru[_Seam | None] = Lru(_SEAMS_KEPT)
        self._openings: Lru[int] = Lru(_SEAMS_KEPT)
        self._told = False

    def find(
        self,
        messages: Sequence[Mapping[str, Any]],
        prompt: Sequence[int],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> FoundBoundaries:
        """The boundaries of ``prompt``, the rendering of ``messages``.

        None where the template gives none.
        """
        view = _View(self._render, tools, template_kwargs)
        prompt = list(prompt)
        found: dict[int, BoundaryKind] = {}
        try:
            if continue_final_message:
                loop, turn, repeated = self._before_final_message(view, messages, prompt)
            else:
                loop, turn, repeated = self._end_of_history(
                    view, messages, prompt, add_generation_prompt
                )
        except ChatTemplateError as error:
            self._tell(str(error))
            loop = turn = repeated = 0
        else:
            if not turn:
                self._tell("the next turn repeats nothing of a prompt")
        last = len(prompt) - 1
        loop, turn = min(loop, last), min(turn, last)
        if tools and loop > turn:
            found[loop] = "completion"
        if turn > 0:
            found[turn] = "boundary"
        head = min(self._head(view, messages, prompt), last)
        if head > 0 and head not in found:
            found[head] = "head"
        if head > turn > 0:
            del found[head]
        marks = tuple(Boundary(tokens, kind) for tokens, kind in sorted(found.items()))
        return FoundBoundaries(marks, repeated)

    def next_turn(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The tokens that any next turn after ``messages`` begins with.

        ``messages`` ends with the assistant's reply. What follows it is a turn of the user, or
        the results of the tools that the reply calls. Empty where the template refuses.
        """
        view = _View(self._render, tools, template_kwargs)
        try:
            calls = messages[-1].get("tool_calls") if messages else None
            lead = [_user(_TURNS[0]), *([_call()] if calls else [_reply(_REPLY)])]
            return self._common_start(view, messages, lead)
        except ChatTemplateError as error:
            log.debug("no next turn can be rendered: %s", error)
            return []

    def _end_of_history(
        self,
        view: _View,
        messages: Sequence[Mapping[str, Any]],
        prompt: list[int],
        add_generation_prompt: bool,
    ) -> tuple[int, int, int]:
        """The end of the history for whoever keeps all of it, and for a next turn of the user;
        and what that turn repeats of the whole prompt.
        """
        seam = self._seam(view, messages, add_generation_prompt)
        end = len(prompt)
        if seam is None or tuple(prompt[end - len(seam.generation) :]) != seam.generation:
            # This conversation's prompt ends in a way of its own.
            end = common_prefix(prompt, view.history(messages)) - (seam.loose if seam else _FUSED)
        else:
            end -= len(seam.generation) + seam.loose
        following = view.history([*messages, _reply(_REPLY), _user(_TURNS[0])])
        end = max(end, 0)
        repeated = common_prefix(prompt, following)
        return end, min(end, repeated), repeated

    def _before_final_message(
        self, view: _View, messages: Sequence[Mapping[str, Any]], prompt: list[int]
    ) -> tuple[int, int, int]:
        """The same for a prompt that ends within the reply: the end is where that begins."""
        base = view.prompt(messages[:-1])
        shared = common_prefix(prompt, base)
        loop, turn, repeated = self._end_of_history(view, messages[:-1], base, True)
        # The tokens of an unfinished reply may fuse with what it goes on with.
        whole = len(prompt) if repeated == len(base) == shared else min(repeated, shared)
        return min(loop, shared), min(turn, shared), whole

    def _seam(
        self, view: _View, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool
    ) -> _Seam | None:
        """How prompts of this kind end, learned from a tiny conversation; None if it tells none."""
        after_tool = bool(messages) and messages[-1].get("role") == "tool"
        key = view.key([after_tool, add_generation_prompt])
        with self._lock:
            if key in self._seams:
                return self._seams.get(key)
        try:
            seam = _learn_seam(view.without_tools(), after_tool, add_generation_prompt)
        except ChatTemplateError:
            seam = None
        with self._lock:
            self._seams.put(key, seam)
        return seam

    def _head(self, view: _View, messages: Sequence[Mapping[str, Any]], prompt: list[int]) -> int:
        """The end of system and tools in ``prompt``, 0 if it does not begin with them."""
        system = []
        for message in messages:
            if message.get("role") not in _SYSTEM_ROLES:
                break
            system.append(message)
        key = view.key([system, view.tools])
        with self._lock:
            head = self._heads.get(key)
        if head is None:
            try:
                head = self._common_start(view, system, system and [{**system[0], "content": "x"}])
            except ChatTemplateError:
                head = []
            with self._lock:
                self._heads.put(key, head)
        shared = common_prefix(head, prompt)
        return shared if shared + _FUSED >= len(head) else 0

    def _common_start(
        self,
        view: _View,
        messages: Sequence[Mapping[str, Any]],
        like: Sequence[Mapping[str, Any]],
    ) -> list[int]:
        """What ``messages`` and any next turn begin with.

        How a turn's first characters fuse with what is before them is learned behind ``like``,
        messages of the same kind, but short.
        """
        one, other = (view.history([*messages, *_following(messages, text)]) for text in _TURNS)
        key = view.key([message["role"] for message in like])
        with self._lock:
            loose = self._openings.get(key)
        if loose is None:
            loose = _learn_opening(view.without_tools(), like)
            with self._lock:
                self._openings.put(key, loose)
        return one[: max(0, common_prefix(one, other) - loose)]

    def _tell(self, why: str) -> None:
        with self._lock:
            told, self._told = self._told, True
        if not told:
            log.info("chat template: no boundary before the reply: %s", why)


@dataclass(frozen=True, slots=True)
class _View:
    """One way of rendering: the tools and arguments that a request brings."""

    render: Render
    tools: Sequence[Mapping[str, Any]] | None
    template_kwargs: Mapping[str, Any] | None

    def history(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """A conversation without a generation prompt."""
        return self._tokens(messages, False)

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """A conversation with one."""
        return self._tokens(messages, True)

    def without_tools(self) -> _View:
        return _View(self.render, None, self.template_kwargs)

    def key(self, parts: object) -> str:
        return json.dumps([parts, self.template_kwargs], sort_keys=False, default=repr)

    def _tokens(self, messages: Sequence[Mapping[str, Any]], generation: bool) -> list[int]:
        return self.render(
            messages,
            tools=self.tools,
            template_kwargs=self.template_kwargs,
            add_generation_prompt=generation,
        )


def _learn_seam(view: _View, after_tool: bool, add_generation_prompt: bool) -> _Seam:
    start: list[dict[str, Any]] = [_user("Hello.")]
    if after_tool:
        start += [_call(), *_following([_call()], "done")]
    history = view.history(start)
    prompt = view.prompt(start) if add_generation_prompt else history
    end = common_prefix(prompt, history)
    kept = min(
        common_prefix(prompt, view.history([*start, _reply(text), _user(_TURNS[0])]))
        for text in _OPENINGS
    )
    return _Seam(tuple(prompt[end:]), max(0, end - kept))


def _learn_opening(view: _View, like: Sequence[Mapping[str, Any]]) -> int:
    """How many tokens before a turn's first character may fuse with it."""
    one, other = (view.history([*like, *_following(like, text)]) for text in _TURNS)
    shared = common_prefix(one, other)
    return shared - min(
        common_prefix(one[:shared], view.history([*like, *_following(like, text)]))
        for text in _OPENINGS
    )


def _call() -> dict[str, Any]:
    """A reply that calls a tool."""
    function = {"name": "look", "arguments": {"at": "it"}}
    call = {"id": "call00001", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _following(messages: Sequence[Mapping[str, Any]], text: str) -> list[dict[str, Any]]:
    """What comes after a reply: results of the tools it calls, or a turn of the user."""
    calls = messages[-1].get("tool_calls") if messages else None
    if not calls:
        return [_user(text)]
    first = calls[0] if isinstance(calls[0], Mapping) else {}
    name = (first.get("function") or {}).get("name")
    result = {"role": "tool", "content": text, "tool_call_id": first.get("id"), "name": name}
    return [{key: value for key, value in result.items() if value is not None}]


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _reply(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
