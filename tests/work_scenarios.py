"""The scenarios of the benchmark on a tiny model, step by step: who asks what, and when.

Prompts are tokens, so that they are the same on every machine and for every model. Answers are as
long as they are told to be, so that no count hangs on what a model says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from engine_harness import CoreHarness, random_prompt
from mlxceld.models.boundaries import Boundary
from work_counter import PromptTree, Work, counted

PREFIX_TOKENS = 397
"""The system prompt that requests share; its last block is not full."""

QUESTION_TOKENS = 16
ANSWER_TOKENS = 16
SHARERS = 8
TURNS = 8
DISTINCT_PROMPTS = 32
LONG_PROMPT_TOKENS = 1200
CHUNK_TOKENS = 128

_GENERATION_PROMPT = [250, 251, 252]
_END_OF_ANSWER = [253, 254]
"""What a chat template puts before and after an answer."""


class Users:
    """Those who ask one engine; their answers go on to the end, whatever the model says."""

    def __init__(self, harness: CoreHarness) -> None:
        self.harness = harness
        self.distinct = 0
        self._tree = PromptTree()

    def ask(
        self,
        history: list[int],
        *,
        head: int = 0,
        session: str = "s",
        answer: int = ANSWER_TOKENS,
        tool_loop: bool = False,
    ) -> str:
        """Submit a conversation so far, of which the first ``head`` tokens are the system's.

        In a loop of tool calls the next prompt repeats the whole answer.
        """
        prompt = [*history, *_GENERATION_PROMPT]
        self.distinct += self._tree.add(prompt)
        points = (Boundary(head, "head"),) if head else ()
        options: dict[str, Any] = {"keeps": len} if tool_loop else {}
        return self.harness.submit(
            prompt,
            session=session,
            max_tokens=answer,
            ignore_eos=True,
            boundaries=(*points, Boundary(len(history), "boundary")),
            **options,
        )

    async def converse(self, history: list[int], **options: Any) -> list[int]:
        """Ask, wait for the end, and return the conversation with the answer."""
        request_id = self.ask(history, **options)
        await self.harness.run()
        answer = self.harness.results[request_id].tokens
        return [*history, *_GENERATION_PROMPT, *answer, *_END_OF_ANSWER]


@dataclass(frozen=True)
class Scenario:
    """``before`` is run first and not counted, except that what it computed need not be again."""

    name: str
    run: Callable[[Users], Awaitable[None]]
    before: Callable[[Users], Awaitable[None]] | None = None

    async def count(self, harness: CoreHarness) -> Work:
        """Run it on a fresh core and count it."""
        users = Users(harness)
        if self.before is not None:
            await self.before(users)
        seen = users.distinct
        with counted(harness) as work:
            await self.run(users)
        work.tokens_distinct = users.distinct - seen
        harness.check()
        return work


def _prefix() -> list[int]:
    return random_prompt(1, PREFIX_TOKENS, 250)


def _question(number: int, tokens: int = QUESTION_TOKENS) -> list[int]:
    """A text whose first token is nobody else's, so that no two begin alike by chance."""
    return [number, *random_prompt(100 + number, tokens - 1, 250)]


async def _warmed(users: Users) -> None:
    """One request with the shared prefix, and a question of its own."""
    await users.converse([*_prefix(), *_question(99)], head=PREFIX_TOKENS)


async def _started(users: Users) -> None:
    """One short request that has nothing in common with what follows."""
    await users.converse(_question(98))


async def _idle(users: Users) -> None:
    """What an idle engine does: it looks whether anything is old, and recounts what it has."""
    for _ in range(10):
        await users.harness.step()
    assert users.harness.store.sweep() == 0
    users.harness.check()


async def _burst(users: Users) -> None:
    for number in range(SHARERS):
        users.ask([*_prefix(), *_question(number)], head=PREFIX_TOKENS, session=f"s{number}")
    await users.harness.run()


async def _one_after_another(users: Users) -> None:
    for number in range(SHARERS):
        history = [*_prefix(), *_question(number)]
        await users.converse(history, head=PREFIX_TOKENS, session=f"s{number}")


async def _multiturn(users: Users) -> None:
    head = random_prompt(2, 61, 250)
    talk = head
    for turn in range(TURNS):
        talk = await users.converse([*talk, *_question(turn, 24)], head=len(head))


async def _churn(users: Users) -> None:
    for number in range(DISTINCT_PROMPTS):
        users.ask(_question(number, 100), session=f"s{number}", answer=8)
    await users.harness.run()


async def _agent_loop(users: Users) -> None:
    head = random_prompt(3, 203, 250)
    talk = [*head, *_question(0, 30)]
    for turn in range(TURNS):
        talk = await users.converse(talk, head=len(head), answer=12, tool_loop=True)
        talk = [*talk, *_question(turn, 40 + 11 * turn)]


async def _mixed(users: Users) -> None:
    for number in range(4):
        users.ask(_question(number, 24), session=f"s{number}", answer=64)
    await users.harness.step(8)
    users.ask(_question(9, LONG_PROMPT_TOKENS), session="long", answer=8)
    await users.harness.run()


def _decode(streams: int) -> Callable[[Users], Awaitable[None]]:
    async def run(users: Users) -> None:
        for number in range(streams):
            users.ask(_question(number, 20), session=f"s{number}", answer=48)
        await users.harness.run()

    return run


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("idle", _idle, before=_warmed),
        Scenario("shared_prefix_burst_cold", _burst, before=_started),
        Scenario("shared_prefix_burst_warm", _burst, before=_warmed),
        Scenario("seqshare", _one_after_another),
        Scenario("multiturn", _multiturn),
        Scenario("churn", _churn),
        Scenario("agent_loop", _agent_loop),
        Scenario("mixed", _mixed),
        *(Scenario(f"decode_{streams}", _decode(streams)) for streams in (1, 2, 4, 8)),
    )
}
"""All of them by name, in the order of the table."""
