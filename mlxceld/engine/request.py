"""What a caller asks of the engine. No MLX in here: HTTP handlers build these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from mlxceld.models.boundaries import Boundary

ANONYMOUS_SESSION = "__mlxcel_anon__"
"""The session of every caller that names none."""

RAW_PROMPT_SIGNATURE = "raw-prompt"
"""The template signature of prompts that no chat template rendered."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen, and when to end.

    ``temperature`` 0 is argmax. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 are off. ``max_tokens``
    None means up to the context limit. ``seed`` None draws one at submission. ``logprobs`` None
    returns none, n returns the chosen token's and the n most likely alternatives'.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None


class Constraint(Protocol):
    """What may come next in one sequence; its engine asks before and tells after every token."""

    def mask(self) -> bytes:
        """A bit for each token, lowest bit of the first byte first: 1 where it may come next."""

    def accept(self, token: int) -> None:
        """Take the token that came; raises ValueError for one that may not."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate.

    ``id`` is unique among requests in flight; ``tokens`` is the whole prompt, at least one token.
    ``template_signature`` names how the prompt was rendered: only requests of one signature share
    cached prefixes. ``timeout`` is seconds from submission to the last token, 0 for none.
    ``boundaries`` are the points of the prompt that later prompts will begin with. ``keeps`` tells
    how many leading tokens of prompt and answer the next turn's rendering will have again; it is
    called on the engine thread when the answer is complete. ``after`` is given the answer's text
    there then, and returns at once.
    ``constraint`` decides which tokens may come, and belongs to this sequence alone.
    ``shown_tokens`` are special tokens whose names are to be part of the text.
    What is of the ``background`` is the daemon's own work, and counts as nobody's request.
    """

    id: str
    tokens: Sequence[int]
    sampling: SamplingParams
    session: str = ANONYMOUS_SESSION
    template_signature: str = RAW_PROMPT_SIGNATURE
    client: str | None = None
    endpoint: str = "completions"
    stream: bool = False
    timeout: float = 0.0
    background: bool = False
    boundaries: tuple[Boundary, ...] = ()
    keeps: Callable[[Sequence[int]], int] | None = None
    after: Callable[[str], None] | None = None
    constraint: Constraint | None = None
    shown_tokens: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class NextTurn:
    """What the next request of a conversation will begin with, known before it comes."""

    tokens: Sequence[int]
    session: str
    template_signature: str
    client: str | None = None
