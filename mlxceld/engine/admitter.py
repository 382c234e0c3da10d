"""Who gets the next place in the batch, and what a sequence begins with when it has one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mlxceld.config.units import readable_bytes
from mlxceld.engine import grouping, sharing
from mlxceld.engine.constraint import make_constraint
from mlxceld.engine.output import TokenOutput
from mlxceld.engine.sampling import RowSampler
from mlxceld.engine.sequence import Phase, Sequence
from mlxceld.kv import row_caches

if TYPE_CHECKING:
    from mlxceld.engine.batch import DecodeBatch
    from mlxceld.engine.next_turns import MakeNextTurns
    from mlxceld.engine.prefix_cache import PrefixMemory
    from mlxceld.engine.recorder import Recorder
    from mlxceld.engine.request_finisher import RequestFinisher
    from mlxceld.engine.row_allocator import RowAllocator
    from mlxceld.engine.scheduler import Scheduler
    from mlxceld.models.loading import LoadedModel
    from mlxceld.prompt_cache.match import Match


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a sequence can begin with: what is stored, or what ``leader`` has or will have.

    ``common`` counts the tokens that both begin with; 0 without a leader.
    """

    match: Match[Any]
    leader: Sequence | None
    common: int


class Admitter:
    """Admits who fits the memory, and lets each adopt what is stored or follow who computes it.

    All of it but :meth:`due` needs a pipeline break. A prompt is looked up once: the match is
    carried while its sequence waits, and the comparison with prompts in flight is made when it
    gets its place.
    """

    def __init__(
        self,
        model: LoadedModel,
        scheduler: Scheduler,
        batch: DecodeBatch,
        allocator: RowAllocator,
        reuse: PrefixMemory,
        endings: RequestFinisher,
        recorder: Recorder,
        clock: Callable[[], float],
        make_next_turns: MakeNextTurns,
    ) -> None:
        self._model = model
        self._scheduler = scheduler
        self._batch = batch
        self._allocator = allocator
        self._reuse = reuse
        self._endings = endings
        self._recorder = recorder
        self._clock = clock
        self._make_next_turns = make_next_turns
        self._blocked: tuple[object, ...] | None = None

    @property
    def due(self) -> bool:
        """Whether :meth:`admit` would do anything.

        Not where the first in line lacked memory and nothing has come or gone since that could
        change it: then decode steps go on overlapped, and nothing is looked up.
        """
        if self._endings.unstored or self._scheduler.orphans:
            return True
        first = self._scheduler.next_in_line(len(self._batch))
        return first is not None and self._blocked != self._state(first)

    def admit(self) -> None:
        """Place orphans, then give places in turn until they or the memory are used up."""
        self._blocked = None
        self._allocator.note_held()
        for sequence in self._scheduler.take_orphans():
            self.attempt(self._place, sequence)
        if not self._scheduler.waiting:
            return
        while (first := self._scheduler.next_in_line(len(self._batch))) is not None:
            sequence = first
            if not sequence.prompt:
                sequence.prompt = list(sequence.request.tokens)
            beginning = self._beginning(sequence)
            if missing := self._allocator.shortage(sequence, beginning):
                sequence.note = f"waits for {readable_bytes(missing)} of memory"
                self._blocked = self._state(sequence)
                return
            self._scheduler.admit()
            sequence.note = ""
            self.attempt(partial(self._begin, beginning=beginning), sequence)

    def let_go(self, leader: Sequence, *, reads_together: bool) -> None:
        """Store what followers of a sequence wait for, and let those go on who have it all."""
        ready = sharing.ready(leader)
        if ready:
            self._allocator.note_held()
            self._reuse.share(leader)
            if reads_together and grouping.reads_along(leader, ready):
                self.attempt(self._reuse.reading.page_out, leader)
        for follower in ready:
            sharing.unfollow(follower)
            self.attempt(self._place, follower)

    def attempt(self, action: Callable[[Sequence], None], sequence: Sequence) -> None:
        """Do something for one sequence; if it fails, that request alone does."""
        if sequence.phase is Phase.DONE:
            return
        try:
            action(sequence)
        except Exception as error:
            self._endings.fault(sequence, error)

    def _state(self, first: Sequence) -> tuple[object, ...]:
        """What has to change before the first in line, if it lacks memory, may have enough."""
        recorder = self._recorder
        return (
            first.seq_id,
            self._endings.count,
            recorder.preemptions,
            self._scheduler.prefilling,
            len(self._scheduler.computing()),
            self._reuse.store.version,
        )

    def _beginning(self, sequence: Sequence) -> Beginning:
        match = self._reuse.match(sequence)
        if not self._reuse.shares_early:
            return Beginning(match, None, 0)
        least = self._reuse.store.min_prefix
        computing = self._scheduler.computing()
        return Beginning(match, *sharing.leader_of(sequence, computing, match.matched, least))

    def _begin(self, sequence: Sequence, beginning: Beginning) -> None:
        if sequence.sampler is None:  # it has not been here before
            request = sequence.request
            sequence.prefill_started_at = self._clock()
            sequence.sampler = RowSampler(
                request.sampling, sequence.seed, self._model.status.vocab_size
            )
            sequence.output = TokenOutput(
                self._model.text, sequence.prompt, request.sampling.stop, request.shown_tokens
            )
            if request.constraint is not None:
                sequence.constraint = make_constraint(self._model.text, request.constraint)
            sequence.continuation = self._make_next_turns(request)
        if self._reuse.match(sequence) is not beginning.match:
            # What made room for it has changed what is stored of it.
            beginning = self._beginning(sequence)
        self._start(sequence, beginning)

    def _place(self, sequence: Sequence) -> None:
        self._start(sequence, self._beginning(sequence))

    def _start(self, sequence: Sequence, beginning: Beginning) -> None:
        """Let a sequence adopt what is stored, or follow one that is computing its beginning."""
        leader, common = beginning.leader, beginning.common
        if leader is not None and leader.prefilled < common:
            sharing.follow(sequence, leader, common)
            return
        if leader is not None:
            self._reuse.share(leader)
        self._reuse.adopt(sequence)
        sequence.num_recomputed_tokens = max(0, sequence.num_recomputed_tokens - sequence.prefilled)
        if sequence.row is None:
            sequence.row = row_caches.new_row(self._model.module)
        row_caches.set_step(sequence.row, self._allocator.step)
