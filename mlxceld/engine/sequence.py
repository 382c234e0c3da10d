"""One request on its way through the engine."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlxceld.engine.events import Usage

if TYPE_CHECKING:
    from mlxceld.engine.constraint import Constraint
    from mlxceld.engine.next_turns import NextTurns
    from mlxceld.engine.output import TokenOutput
    from mlxceld.engine.request import GenerationRequest
    from mlxceld.engine.sampling import RowSampler
    from mlxceld.engine.stream import EventStream
    from mlxceld.kv.row_caches import Caches
    from mlxceld.prompt_cache.match import Match


class Phase(enum.StrEnum):
    """Where a sequence stands."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


@dataclass(slots=True, eq=False)
class Sequence:
    """A request with all that the engine knows of it. Times are the engine's monotonic clock.

    ``stream`` is None where nobody listens. ``constraint`` and ``continuation`` are made of the
    request's specifications when it is admitted.

    A sequence's keys and values are in two places: its first ``paged_tokens`` tokens in the blocks
    of the pool that ``block_table`` names, which others may read too, and the rest, its tail, in
    ``row``, its own caches while it is not in a batch. ``prefilled`` counts the prompt tokens in
    both, ``cached`` of which were adopted, from a conversation that was adopted ``chain_hits``
    times. ``num_scheduled_tokens`` counts the tokens whose sampling has been started: at most one
    more than ``generated`` holds. ``max_tokens`` is the request's limit cut to the context.
    Of a sequence that was preempted, ``resumed`` generated tokens are computed like a prompt's
    when it goes on, ``num_recomputed_tokens`` of all tokens for the second time. ``note`` says what
    it waits for.
    A sequence that ``follows`` another waits until that one has computed the ``shared_tokens``
    that both begin with; ``followers`` is the other side of it. Until it adopts something it
    carries its ``match``, what of its prompt is stored. Its prefill ends a chunk at each of
    ``chunk_boundaries``, counted in prompt tokens.
    """

    seq_id: int
    request: GenerationRequest
    stream: EventStream | None
    submitted_at: float
    deadline: float | None
    max_tokens: int
    seed: int
    phase: Phase = Phase.WAITING
    sampler: RowSampler | None = None
    output: TokenOutput | None = None
    constraint: Constraint | None = None
    continuation: NextTurns | None = None
    row: Caches | None = None
    block_table: list[int] = field(default_factory=list)
    paged_tokens: int = 0
    follows: Sequence | None = None
    shared_tokens: int = 0
    followers: list[Sequence] = field(default_factory=list)
    chunk_boundaries: tuple[int, ...] = ()
    prompt: list[int] = field(default_factory=list)
    prefilled: int = 0
    cached: int = 0
    chain_hits: int = 0
    generated: list[int] = field(default_factory=list)
    num_scheduled_tokens: int = 0
    ended_by_eos: bool = False
    cancelled: bool = False
    accounted: bool = False
    resumed: int = 0
    num_recomputed_tokens: int = 0
    match: Match[Any] | None = None
    looked_up: bool = False
    note: str = ""
    prefill_started_at: float | None = None
    decode_started_at: float | None = None
    last_token_at: float | None = None

    @property
    def prefill_left(self) -> int:
        """Known tokens still to be computed before decoding; the last one is decode's input."""
        return len(self.prompt) + self.resumed - 1 - self.prefilled

    def known(self) -> list[int]:
        """What has to be computed before decoding, and decode's first input at the end."""
        return [*self.prompt, *self.generated[: self.resumed]] if self.resumed else self.prompt

    @property
    def next_input(self) -> int:
        """The token that decode is fed next; it needs no step in flight."""
        return (
            self.generated[self.num_scheduled_tokens - 1]
            if self.num_scheduled_tokens
            else self.prompt[-1]
        )

    def preempt(self) -> None:
        """Forget what was computed, to start anew with all tokens that are known by now."""
        self.num_recomputed_tokens = max(self.num_recomputed_tokens, self.num_kv_tokens)
        self.resumed = len(self.generated)
        self.prefilled = 0
        self.row = self.match = None
        self.phase = Phase.WAITING

    @property
    def num_kv_tokens(self) -> int:
        """Tokens, of the prompt and generated, that the sequence's caches hold."""
        return self.prefilled + self.num_scheduled_tokens - self.resumed

    def kv_tokens(self) -> list[int]:
        """The tokens that the caches hold; all of them known, which needs no step in flight."""
        return [*self.prompt, *self.generated][: self.num_kv_tokens]

    def usage(self) -> Usage:
        """Token counts as the caller sees them."""
        ends = 1 if self.ended_by_eos else 0
        return Usage(len(self.request.tokens), len(self.generated) - ends, self.cached)
