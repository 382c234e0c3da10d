"""What callers are told of their requests: progress, tokens as text, and how it ended."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mlxceld.engine.events import (
    Event,
    Failed,
    FailureKind,
    Finished,
    FinishReason,
    PrefillProgress,
)
from mlxceld.engine.recorder import spans
from mlxceld.engine.sampling import token_logprob
from mlxceld.engine.stream import EventStream, deliver

if TYPE_CHECKING:
    from mlxceld.engine.recorder import Recorder
    from mlxceld.engine.sampling import LogprobArrays
    from mlxceld.engine.sequence import Sequence
    from mlxceld.models.text import TextCodec

log = logging.getLogger(__name__)


class OutputProcessor:
    """Collects the events of a step until :meth:`hand_over`, and has ``recorder`` count them.

    Knows nothing of batch and caches: whether a sequence goes on is decided by who asks.
    """

    def __init__(self, codec: TextCodec, recorder: Recorder) -> None:
        self.recorder = recorder
        self._codec = codec
        self._outbox: list[tuple[EventStream, Event]] = []

    def progress(self, sequence: Sequence) -> None:
        """Tell how far a prompt has been computed."""
        done = PrefillProgress(sequence.prefilled, len(sequence.prompt), sequence.cached)
        self._tell(sequence, done)

    def take_token(
        self, row: Sequence, token: int, logprobs: LogprobArrays | None, now: float
    ) -> FinishReason | None:
        """Append one token to its row; the reason if the row is done with it.

        Raises RuntimeError if the row has no output, and what its constraint or codec raises.
        """
        params, output = row.request.sampling, row.output
        if output is None:
            raise RuntimeError("a row decodes without an output")
        row.generated.append(token)
        if row.constraint is not None:
            row.constraint.accept(token)
        self.recorder.account_token(row, now)
        if token in self._codec.eos_ids and not params.ignore_eos:
            row.ended_by_eos = True
            return FinishReason.STOP
        detail = None if logprobs is None else token_logprob(self._codec, token, logprobs)
        delta = output.add(token, detail)
        if delta is not None:
            self._tell(row, delta)
        if output.stop_text is not None:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(row.generated) >= row.max_tokens else None

    def finished(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        """Tell what is left of an answer and why it ended, and count the request."""
        delta = sequence.output.finish() if sequence.output is not None else None
        if delta is not None:
            self._tell(sequence, delta)
        queued, prefill, decode = spans(sequence, now)
        stop_text = sequence.output.stop_text if sequence.output is not None else None
        self._tell(
            sequence,
            Finished(reason, sequence.usage(), stop_text, queued, prefill, decode),
        )
        self.recorder.finish(sequence, reason.value, now)
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._announce(sequence)

    def failed(self, sequence: Sequence, kind: FailureKind, message: str) -> None:
        """Tell that a request has failed; it is counted by who took it off the books."""
        self._tell(sequence, Failed(kind, message, sequence.usage()))

    def hand_over(self) -> None:
        """Let callers have what was collected."""
        if self._outbox:
            batch, self._outbox = self._outbox, []
            deliver(batch)

    def _announce(self, sequence: Sequence) -> None:
        """Let whoever knows the conversation think of its next turn."""
        continuation, output = sequence.continuation, sequence.output
        if continuation is None or output is None:
            return
        try:
            continuation.replied(output.text)
        except Exception:
            log.exception("the next turn of request %s is not known", sequence.request.id)

    def _tell(self, sequence: Sequence, event: Event) -> None:
        if sequence.stream is not None:
            self._outbox.append((sequence.stream, event))
