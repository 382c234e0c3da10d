"""The scenarios, as plain data that their seed decides."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mlxctl.bench import tools
from mlxctl.bench.plan import Sizes
from mlxctl.bench.texts import Count, filler, question, story

Message = dict[str, Any]

WARMING_TOKENS = 4

_AT_ONCE = 8
"""Requests in flight where there are many prompts."""


@dataclass(frozen=True)
class Turn:
    """What is added to a conversation before it is asked, and how long the answer may be.

    ``call`` is a tool call that the assistant's message gets beside the text it answered.
    """

    add: tuple[Message, ...]
    tokens: int
    call: Message | None = None


@dataclass(frozen=True)
class Conversation:
    """Turns one after another; each answer becomes part of the next turn's prompt."""

    turns: tuple[Turn, ...]
    tools: tuple[Message, ...] = ()


@dataclass(frozen=True)
class Scenario:
    """One load.

    ``warming`` conversations come first and are not measured. Of ``conversations``, ``at_once`` are
    under way at a time. ``late`` ones begin when each of those has begun to answer.
    ``idle_seconds`` pass without a request.
    """

    name: str
    warming: tuple[Conversation, ...]
    conversations: tuple[Conversation, ...] = ()
    at_once: int = 1
    late: tuple[Conversation, ...] = ()
    idle_seconds: float = 0.0

    @property
    def requests(self) -> int:
        """Measured requests."""
        return sum(len(c.turns) for c in (*self.conversations, *self.late))


@dataclass(frozen=True)
class Dialect:
    """What a chat template has a place for; the rest goes to where every template has one."""

    tools: bool = True
    system: bool = True


@dataclass(frozen=True)
class Maker:
    """What a scenario is made with: sizes, a tokenizer's count, and what the template takes."""

    sizes: Sizes
    count: Count
    dialect: Dialect = field(default_factory=Dialect)
    rng: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311

    def system(self, tokens: int) -> Message:
        """A system prompt of so many tokens."""
        return _message("system", filler(self.rng, tokens, self.count))

    def opening(self, system: Message, user: Message) -> tuple[Message, ...]:
        """How a conversation begins."""
        if self.dialect.system:
            return system, user
        return (_message("user", f"{system['content']}\n\n{user['content']}"),)

    def strange(self) -> tuple[Conversation, ...]:
        """A warming request that has nothing in common with what is measured."""
        opening = self.opening(_message("system", "Be brief."), _message("user", "Hello."))
        return (_single(opening, WARMING_TOKENS),)

    def question(self, number: int) -> Message:
        """A short question of a user."""
        return _message("user", question(self.rng, number, self.sizes.question_tokens, self.count))

    def story(self, number: str) -> Conversation:
        """A request with a long answer."""
        return _single((_message("user", story(self.rng, number)),), self.sizes.decode_tokens)


def make_scenario(
    name: str,
    *,
    seed: int,
    repeat: int,
    sizes: Sizes,
    count: Count,
    dialect: Dialect = Dialect(),
) -> Scenario:
    """The scenario of that name; raises KeyError if there is none.

    The same arguments give the same scenario, and each repeat has texts of its own.
    """
    rng = random.Random(f"{seed}/{repeat}/{name}")  # noqa: S311 - fixed, not secret
    return _MAKERS[name](Maker(sizes, count, dialect, rng))


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _single(messages: tuple[Message, ...], tokens: int) -> Conversation:
    return Conversation((Turn(messages, tokens),))


def _idle(make: Maker) -> Scenario:
    return Scenario("idle", make.strange(), idle_seconds=make.sizes.idle_seconds)


def _shared(make: Maker) -> tuple[Message, tuple[Conversation, ...]]:
    system = make.system(make.sizes.prefix_tokens)
    return system, tuple(
        _single(make.opening(system, make.question(number)), make.sizes.tokens)
        for number in range(make.sizes.sharers)
    )


def _burst_cold(make: Maker) -> Scenario:
    _, sharers = _shared(make)
    return Scenario("shared_prefix_burst_cold", make.strange(), sharers, len(sharers))


def _burst_warm(make: Maker) -> Scenario:
    system, sharers = _shared(make)
    warming = (_single(make.opening(system, _message("user", "Hello.")), WARMING_TOKENS),)
    return Scenario("shared_prefix_burst_warm", warming, sharers, len(sharers))


def _seqshare(make: Maker) -> Scenario:
    return Scenario("seqshare", make.strange(), _shared(make)[1])


def _multiturn(make: Maker) -> Scenario:
    sizes = make.sizes
    turns = []
    for number in range(sizes.turns):
        text = filler(make.rng, sizes.prefix_tokens // sizes.turns, make.count)
        turns.append(
            Turn((_message("user", f"{number}: {text}. What is that about?"),), sizes.tokens)
        )
    return Scenario("multiturn", make.strange(), (Conversation(tuple(turns)),))


def _churn(make: Maker) -> Scenario:
    tokens = make.sizes.prefix_tokens // 4
    conversations = tuple(
        _single(
            (_message("user", f"{n}: {filler(make.rng, tokens, make.count)}"),), make.sizes.tokens
        )
        for n in range(make.sizes.prompts)
    )
    return Scenario("churn", make.strange(), conversations, _AT_ONCE)


def _agent_loop(make: Maker) -> Scenario:
    sizes = make.sizes
    system = make.system(sizes.prefix_tokens // 4)
    if not make.dialect.tools:
        system = tools.in_system_message(system)
    add = make.opening(system, _message("user", "Find out what fails and mend it."))
    turns = []
    for number in range(sizes.turns):
        call = tools.seeded_call(make.rng, number)
        turns.append(Turn(add, sizes.tokens, call))
        result = filler(make.rng, sizes.prefix_tokens // sizes.turns, make.count)
        add = (tools.result_message(call, result, native=make.dialect.tools),)
    offered = tools.TOOLS if make.dialect.tools else ()
    return Scenario("agent_loop", make.strange(), (Conversation(tuple(turns), offered),))


def _mixed(make: Maker) -> Scenario:
    sizes = make.sizes
    short = tuple(make.story(str(number)) for number in range(sizes.short_streams))
    long = _single(make.opening(make.system(sizes.prefix_tokens), make.question(0)), sizes.tokens)
    return Scenario("mixed", make.strange(), short, len(short), late=(long,))


def _decode(streams: int) -> Callable[[Maker], Scenario]:
    def make_it(make: Maker) -> Scenario:
        # Begun otherwise than those of the other levels, which run in the same process.
        stories = tuple(make.story(f"{streams}/{number}") for number in range(streams))
        return Scenario(f"decode_{streams}", make.strange(), stories, streams)

    return make_it


_MAKERS: dict[str, Callable[[Maker], Scenario]] = {
    "idle": _idle,
    "shared_prefix_burst_cold": _burst_cold,
    "shared_prefix_burst_warm": _burst_warm,
    "seqshare": _seqshare,
    "multiturn": _multiturn,
    "churn": _churn,
    "agent_loop": _agent_loop,
    "mixed": _mixed,
    "decode_1": _decode(1),
    "decode_2": _decode(2),
    "decode_4": _decode(4),
    "decode_8": _decode(8),
}
