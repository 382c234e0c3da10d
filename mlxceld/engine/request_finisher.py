"""How sequences end: they leave the batch and the books, and what they computed is stored."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from mlxceld.engine.events import FailureKind, FinishReason
from mlxceld.engine.sequence import Phase, Sequence

if TYPE_CHECKING:
    from mlxceld.engine.batch import DecodeBatch
    from mlxceld.engine.output_processor import OutputProcessor
    from mlxceld.engine.prefix_cache import PrefixMemory
    from mlxceld.engine.row_allocator import RowAllocator
    from mlxceld.engine.scheduler import Scheduler

log = logging.getLogger(__name__)


class RequestFinisher:
    """Takes sequences out of ``in_flight``, which is the core's own dictionary by request id.

    Callers are told at once; what well-ended sequences leave is kept until :meth:`store`. ``count``
    is how many have ended, in whichever way.
    """

    def __init__(
        self,
        in_flight: dict[str, Sequence],
        scheduler: Scheduler,
        batch: DecodeBatch,
        allocator: RowAllocator,
        reuse: PrefixMemory,
        answers: OutputProcessor,
        clock: Callable[[], float],
    ) -> None:
        self._in_flight = in_flight
        self._scheduler = scheduler
        self._batch = batch
        self._allocator = allocator
        self._reuse = reuse
        self._answers = answers
        self._clock = clock
        self._ended: list[Sequence] = []
        self.count = 0

    @property
    def unstored(self) -> bool:
        """Whether there are ended sequences that have not been offered to the prompt cache."""
        return bool(self._ended)

    def end(self, ended: Iterable[tuple[Sequence, FinishReason]], now: float) -> None:
        """End sequences that are done, or whose callers or time say so."""
        ended = [(s, reason) for s, reason in ended if s.phase is not Phase.DONE]
        if not ended:
            return
        self._batch.leave([s for s, _ in ended], self._reuse.should_donate)
        for sequence, reason in ended:
            self._answers.finished(sequence, reason, now)
            self._drop(sequence)
            self._ended.append(sequence)
        # Callers are told before what they leave is stored, which takes time and must wait for the
        # step in flight.
        self._answers.hand_over()

    def store(self) -> None:
        """Store what ended sequences leave; with no step in flight."""
        ended, self._ended = self._ended, []
        if ended:
            self._allocator.note_held()
        for sequence in ended:
            try:
                self._reuse.donate(sequence)
            except Exception:
                # It has its answer; what is lost is only that the next one could have been quicker.
                log.exception("what request %s computed could not be kept", sequence.request.id)
            self._allocator.free(sequence)

    def forget(self) -> None:
        """Let go of what ended sequences leave, and store nothing of it."""
        for sequence in self._ended:
            self._allocator.free(sequence)
        self._ended.clear()

    def fault(self, sequence: Sequence, error: Exception) -> None:
        """Fail one request by an error of its own; the others go on."""
        log.error("request %s failed: %s", sequence.request.id, error, exc_info=error, stacklevel=2)
        self._batch.leave([sequence], lambda _: False)
        text = "".join(traceback.format_exception_only(error)).strip()
        self.fail(sequence, FailureKind.REQUEST, text, self._clock())

    def fail(self, sequence: Sequence, kind: FailureKind, message: str, now: float) -> None:
        """End a sequence with an error; it must have left the batch, or the batch be cleared."""
        self._answers.failed(sequence, kind, message)
        self._drop(sequence)
        self._allocator.free(sequence)
        self._answers.recorder.finish(sequence, "error", now, error=message)

    def _drop(self, sequence: Sequence) -> None:
        """Take an ended sequence off the books; its row is the caller's to store or forget."""
        self.count += 1
        sequence.phase = Phase.DONE
        self._scheduler.remove(sequence)
        self._in_flight.pop(sequence.request.id, None)
