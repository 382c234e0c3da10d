"""Where a rendered conversation can be resumed: token positions that the next turn repeats.

Found by rendering, never by looking for a text: what two renderings begin with in common, token
for token, is what a cache may keep. Templates may drop thinking, move tools, merge system turns
or strip text; whatever they do shows in the renderings. No MLX in here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mlxceld.models.errors import ChatTemplateError
from mlxceld.models.lru import Lru
from mlxceld.models.probing import (
    FUSED,
    REPLY,
    TURNS,
    Render,
    Seam,
    View,
    calling_turn,
    common_prefix,
    following,
    learn_opening,
    learn_seam,
    repeats_in_loops,
    reply_turn,
    user_turn,
)

__all__ = ["Boundary", "BoundaryFinder", "BoundaryKind", "FoundBoundaries", "common_prefix"]

log = logging.getLogger(__name__)

BoundaryKind = Literal["head", "boundary", "completion", "prefetch"]

_SYSTEM_ROLES = frozenset({"system", "developer"})

_HEADS_KEPT = 64
_SEAMS_KEPT = 256


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


class BoundaryFinder:
    """Finds the boundaries of one chat template's prompts; may be used from any thread.

    A prompt costs one more rendering of its conversation. Heads and the ends of prompts are
    remembered, so that they are rendered once for many prompts.
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        self._lock = threading.Lock()
        self._heads: Lru[list[int]] = Lru(_HEADS_KEPT)
        self._seams: Lru[Seam | None] = Lru(_SEAMS_KEPT)
        self._openings: Lru[int] = Lru(_SEAMS_KEPT)
        self._keeping: Lru[bool] = Lru(_SEAMS_KEPT)
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
        view = View(self._render, tools, template_kwargs)
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
            # Nobody can tell then.
            loop, turn, repeated = 0, 0, len(prompt)
        else:
            if not turn:
                self._tell("the next turn repeats nothing of a prompt")
        last = len(prompt) - 1
        loop, turn = min(loop, last), min(turn, last)
        if tools and loop > turn and self._loops(view, messages):
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
        view = View(self._render, tools, template_kwargs)
        try:
            calls = messages[-1].get("tool_calls") if messages else None
            lead = [user_turn(TURNS[0]), *([calling_turn()] if calls else [reply_turn(REPLY)])]
            return self._common_start(view, messages, lead)
        except ChatTemplateError as error:
            log.debug("no next turn can be rendered: %s", error)
            return []

    def _end_of_history(
        self,
        view: View,
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
            end = common_prefix(prompt, view.history(messages)) - (seam.loose if seam else FUSED)
        else:
            end -= len(seam.generation) + seam.loose
        following = view.history([*messages, reply_turn(REPLY), user_turn(TURNS[0])])
        end = max(end, 0)
        repeated = common_prefix(prompt, following)
        return end, min(end, repeated), repeated

    def _before_final_message(
        self, view: View, messages: Sequence[Mapping[str, Any]], prompt: list[int]
    ) -> tuple[int, int, int]:
        """The same for a prompt that ends within the reply: the end is where that begins."""
        base = view.prompt(messages[:-1])
        shared = common_prefix(prompt, base)
        loop, turn, repeated = self._end_of_history(view, messages[:-1], base, True)
        # The tokens of an unfinished reply may fuse with what it goes on with.
        whole = len(prompt) if repeated == len(base) == shared else min(repeated, shared)
        return min(loop, shared), min(turn, shared), whole

    def _seam(
        self, view: View, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool
    ) -> Seam | None:
        """How prompts of this kind end, learned from a tiny conversation; None if it tells none."""
        after_tool = bool(messages) and messages[-1].get("role") == "tool"
        key = view.key([after_tool, add_generation_prompt])
        with self._lock:
            if key in self._seams:
                return self._seams.get(key)
        try:
            seam = learn_seam(view.without_tools(), after_tool, add_generation_prompt)
        except ChatTemplateError:
            seam = None
        with self._lock:
            self._seams.put(key, seam)
        return seam

    def _loops(self, view: View, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Whether results of tools repeat the history before them, as tiny conversations tell."""
        lead = [{**m, "content": "Be brief."} for m in messages[:1] if m.get("role") == "system"]
        after_tool = messages[-1].get("role") == "tool"
        key = view.key([len(lead), after_tool])
        with self._lock:
            found = self._keeping.get(key)
        if found is None:
            try:
                found = repeats_in_loops(view, lead, after_tool)
            except ChatTemplateError:
                found = False
            with self._lock:
                self._keeping.put(key, found)
        return found

    def _head(self, view: View, messages: Sequence[Mapping[str, Any]], prompt: list[int]) -> int:
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
        return shared if shared + FUSED >= len(head) else 0

    def _common_start(
        self,
        view: View,
        messages: Sequence[Mapping[str, Any]],
        like: Sequence[Mapping[str, Any]],
    ) -> list[int]:
        """What ``messages`` and any next turn begin with.

        How a turn's first characters fuse with what is before them is learned behind ``like``,
        messages of the same kind, but short.
        """
        one, other = (view.history([*messages, *following(messages, text)]) for text in TURNS)
        key = view.key([message["role"] for message in like])
        with self._lock:
            loose = self._openings.get(key)
        if loose is None:
            loose = learn_opening(view.without_tools(), like)
            with self._lock:
                self._openings.put(key, loose)
        return one[: max(0, common_prefix(one, other) - loose)]

    def _tell(self, why: str) -> None:
        with self._lock:
            told, self._told = self._told, True
        if not told:
            log.info("chat template: no boundary before the reply: %s", why)
