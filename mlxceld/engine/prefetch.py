"""Prefetch: idle time is used to compute what the next turn of a conversation will begin with.

After a reply the history is rendered as the next turn will render it, by whoever knows the
conversation. What of it is not stored yet is prefilled here, a chunk at a time, and stored.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mlxceld.engine.prefill import run_chunk
from mlxceld.engine.request import GenerationRequest, NextTurn, SamplingParams
from mlxceld.engine.sequence import Phase, Sequence
from mlxceld.kv import row_caches
from mlxceld.models.boundaries import Boundary

if TYPE_CHECKING:
    from mlxceld.engine.prefix_cache import PrefixMemory

log = logging.getLogger(__name__)

CONVERSATIONS = 8
"""How many wait at most; the newest are kept."""

_NOT_WORTH_IT = 8
"""So few missing tokens are computed with the next turn as well."""

_STEP = 256
"""Tokens by which mlx-lm's caches grow."""


@dataclass(slots=True)
class PrefetchCounters:
    """What was done ahead: prefetches that came to their end, those that were not worth it or
    overtaken, and the tokens that were computed.
    """

    run: int = 0
    skipped: int = 0
    tokens: int = 0


class Prefetcher:
    """Computes next turns while there is nothing else to do; belongs to the engine thread.

    Between two chunks it may be left alone for as long as one likes, or interrupted, which stores
    what is done. ``chunk`` is tokens; ``allowed`` is asked before each conversation;
    ``in_flight`` gives the requests under way. ``limit`` is the budget for keys and values in
    bytes: what does not fit beside what is stored is not computed, nor what leaves no room for
    a next turn in ``context_length`` tokens.
    """

    def __init__(
        self,
        module: Any,
        reuse: PrefixMemory,
        *,
        chunk: int,
        allowed: Callable[[], bool],
        in_flight: Callable[[], Iterable[Sequence]] = tuple,
        limit: int | None = None,
        context_length: int | None = None,
    ) -> None:
        self.counters = PrefetchCounters()
        self._module = module
        self._reuse = reuse
        self._chunk = chunk
        self._allowed = allowed
        self._in_flight = in_flight
        self._limit = limit
        self._context_length = context_length
        # The newest last.
        self._turns: deque[NextTurn] = deque()
        self._running: tuple[NextTurn, Sequence] | None = None

    @property
    def pending(self) -> bool:
        """Whether there is anything to do."""
        return self._running is not None or bool(self._turns)

    def offer(self, turn: NextTurn) -> None:
        """Take a conversation that waits for its next turn, in place of its former state."""
        if not turn.tokens or any(_goes_on(turn, s.request) for s in self._in_flight()):
            self.counters.skipped += 1
            return
        self._drop(lambda older: _extends(turn, older))
        self._turns.append(turn)
        while len(self._turns) > CONVERSATIONS:
            self._turns.popleft()
            self.counters.skipped += 1

    def overtaken(self, request: GenerationRequest) -> None:
        """A request has come: its conversation is not to be computed ahead any more."""
        self._drop(lambda turn: _goes_on(turn, request))

    def step(self) -> None:
        """Compute one chunk, and store a conversation that is complete with it."""
        try:
            if self._running is None:
                self._begin()
            if self._running is not None:
                self._advance(*self._running)
        except Exception:
            # The next turn computes it: slower, never wrong.
            log.exception("a next turn could not be computed ahead")
            self._end()
            self.counters.skipped += 1

    def interrupt(self) -> None:
        """Store what is computed so far and make way; what is missing is done later."""
        if self._running is None:
            return
        turn, sequence = self._running
        try:
            if sequence.prefilled > sequence.cached:
                self._store(sequence)
        except Exception:
            log.exception("the beginning of a next turn could not be kept")
        self._end()
        self._turns.append(turn)

    # One conversation.

    def _begin(self) -> None:
        turn = self._turns.pop()
        if not self._allowed():
            self.counters.skipped += 1 + len(self._turns)
            self._turns.clear()
            return
        count = len(turn.tokens)
        request = GenerationRequest(
            id="",
            # A prompt's last token is never prefilled; this one stands for whatever comes.
            tokens=(*turn.tokens, 0),
            sampling=SamplingParams(max_tokens=1),
            session=turn.session,
            template_signature=turn.template_signature,
            client=turn.client,
            endpoint="prefetch",
            background=True,
            boundaries=(Boundary(count, "prefetch"),),
        )
        sequence = Sequence(
            seq_id=0,
            request=request,
            stream=None,
            submitted_at=0.0,
            deadline=None,
            max_tokens=1,
            seed=0,
            phase=Phase.PREFILL,
            prompt=list(request.tokens),
        )
        found = self._reuse.match(sequence).matched
        row_bytes = (count + _STEP) * self._reuse.token_bytes
        if (
            not self._stores
            or (self._context_length is not None and count >= self._context_length)
            or count - found <= _NOT_WORTH_IT
            or (self._limit is not None and self._reuse.reserved_bytes() + row_bytes > self._limit)
        ):
            self.counters.skipped += 1
            return
        self._reuse.reserve(row_bytes)
        self._running = (turn, sequence)
        self._reuse.adopt(sequence)
        # Between two chunks it reads nothing of the pool, whose blocks may move meanwhile.
        self._reuse.reading.page_in(sequence)
        if sequence.row is None:
            sequence.row = row_caches.new_row(self._module)

    @property
    def _stores(self) -> bool:
        """Whether anything that is computed would be stored."""
        return self._reuse.store.enabled

    def _advance(self, turn: NextTurn, sequence: Sequence) -> None:
        size = min(self._chunk, sequence.prefill_left)
        if size:
            part = sequence.prompt[sequence.prefilled : sequence.prefilled + size]
            run_chunk(self._module, sequence.row or [], [part])
            sequence.prefilled += size
            self.counters.tokens += size
        if not sequence.prefill_left:
            self._store(sequence)
            self._end()
            self.counters.run += 1

    def _store(self, sequence: Sequence) -> None:
        row = sequence.row or []
        at = Boundary(sequence.prefilled, "prefetch")
        sequence.request = replace(sequence.request, boundaries=(at,))
        self._reuse.on_prefill_progress(sequence, lambda: row)
        self._reuse.donate(sequence)

    def _end(self) -> None:
        if self._running is None:
            return
        _, sequence = self._running
        self._running = None
        sequence.phase = Phase.DONE
        self._reuse.reading.release(sequence)
        sequence.row = None
        self._reuse.reserve(0)
        # No request's log line will ask for it.
        self._reuse.store.rejects.outcomes.take(sequence.seq_id)

    def _drop(self, which: Callable[[NextTurn], bool]) -> None:
        if self._running is not None and which(self._running[0]):
            # What it has computed is good for whoever overtakes it.
            self.interrupt()
        kept = [turn for turn in self._turns if not which(turn)]
        self.counters.skipped += len(self._turns) - len(kept)
        self._turns = deque(kept)


def _extends(newer: NextTurn, older: NextTurn) -> bool:
    """Whether a conversation is another one, some turns later."""
    return _same_kind(older, newer.session, newer.template_signature) and _begins(
        newer.tokens, older.tokens
    )


def _goes_on(turn: NextTurn, request: GenerationRequest) -> bool:
    """Whether a request is the next turn that was waited for."""
    return _same_kind(turn, request.session, request.template_signature) and _begins(
        request.tokens, turn.tokens
    )


def _same_kind(turn: NextTurn, session: str, signature: str) -> bool:
    return turn.session == session and turn.template_signature == signature


def _begins(tokens: Iterable[int], start: Iterable[int]) -> bool:
    whole, first = list(tokens), list(start)
    return whole[: len(first)] == first
