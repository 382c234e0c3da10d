"""What a caller asks of the engine. No MLX in here: HTTP handlers build these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

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


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """A JSON schema, as text, that an answer has to fit once the tokens ``opens`` have come."""

    schema: str
    opens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplySpec:
    """How a reply's text is read, as far as the model does not say it.

    ``allowed`` names the only tools that may be called, None for all. ``forced``,
    ``in_reasoning``, ``opened`` and ``parallel`` are the reader's own.
    """

    allowed: tuple[str, ...] | None = None
    forced: bool = False
    in_reasoning: bool = False
    opened: str = ""
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class ContinuationSpec:
    """The conversation that a prompt is the rendering of, to foretell its next turn from.

    A next turn repeats the first ``repeated_tokens`` of the prompt's ``prompt_tokens``. With
    ``continues`` the reply goes on with the last message. ``ahead`` asks for the next turn to be
    computed when there is time.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    template_kwargs: Mapping[str, Any] | None
    prompt_tokens: int
    repeated_tokens: int
    continues: bool = False
    reply: ReplySpec = ReplySpec()
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate.

    ``id`` is unique among requests in flight; ``tokens`` is the whole prompt, at least one token.
    ``template_signature`` names how the prompt was rendered: only requests of one signature share
    cached prefixes. ``timeout`` is seconds from submission to the last token, 0 for none.
    ``boundaries`` are the points of the prompt that later prompts will begin with;
    ``continuation`` is what its next turn is foretold from. ``constraint`` says which tokens may
    come. All of it is plain data.
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
    continuation: ContinuationSpec | None = None
    constraint: ConstraintSpec | None = None
    shown_tokens: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class NextTurn:
    """What the next request of a conversation will begin with, known before it comes."""

    tokens: Sequence[int]
    session: str
    template_signature: str
    client: str | None = None
