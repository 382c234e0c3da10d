"""What the engine counts about its requests and steps."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from mlxceld.prompt_cache.key import session_hash
from mlxceld.prompt_cache.outcomes import PREFIX_KINDS, Outcomes
from mlxceld.telemetry.buckets import BUCKETS
from mlxceld.telemetry.histogram import Histogram, HistogramSnapshot
from mlxceld.telemetry.logging import REQUEST_LOGGER

if TYPE_CHECKING:
    from mlxceld.engine.sequence import Sequence

_request_log = logging.getLogger(REQUEST_LOGGER)


class Recorder:
    """Counters and histograms, filled on the engine thread and copied into each snapshot.

    ``outcomes`` tells what the cache decided for each request, for its log line.
    """

    def __init__(self, outcomes: Outcomes | None = None) -> None:
        self.steps = 0
        self.faults = 0
        self.ended = 0
        self.ended_well = 0
        self.tokens_generated = 0
        self.prompt_tokens = 0
        self.prompt_tokens_computed = 0
        self.prompt_tokens_reused = 0
        self.snapshot_tokens_reused = 0
        self.completion_tokens = 0
        self.background_tokens_computed = 0
        self.preemptions = 0
        self.longest_decode_step_seconds = 0.0
        self._decided = outcomes if outcomes is not None else Outcomes()
        self._lines: list[tuple[int, dict[str, object]]] = []
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._histograms = {name: Histogram(bounds) for name, bounds in BUCKETS.items()}

    def observe(self, name: str, value: float) -> None:
        """Count a value into the histogram of that name."""
        self._histograms[name].observe(value)

    def account_prefill(self, sequence: Sequence) -> None:
        """Move a request's prompt counters, once, when its prefill ends or is given up."""
        if sequence.accounted:
            return
        sequence.accounted = True
        # The last prompt token is computed by the first decode step.
        whole = sequence.num_scheduled_tokens > 0 or sequence.prefill_left == 0
        reached = len(sequence.prompt) if whole else sequence.prefilled
        if not reached:
            return
        if sequence.request.background:
            self.background_tokens_computed += reached - sequence.cached
            return
        self.prompt_tokens += reached
        self.prompt_tokens_reused += sequence.cached
        if self._decided.entry_of(sequence.seq_id) not in (None, *PREFIX_KINDS):
            self.snapshot_tokens_reused += sequence.cached
        self.prompt_tokens_computed += reached - sequence.cached

    def account_token(self, sequence: Sequence, now: float) -> None:
        """Count a generated token, and time it from the one before or from the submission."""
        self.tokens_generated += 1
        if sequence.request.background:
            return
        if sequence.last_token_at is None:
            self.observe("time_to_first_token_seconds", now - sequence.submitted_at)
        else:
            self.observe("inter_token_latency_seconds", now - sequence.last_token_at)
        sequence.last_token_at = now

    def finish(self, sequence: Sequence, outcome: str, now: float, error: str = "") -> None:
        """Record the end of a request: counters, histograms and what its log line will say."""
        request, usage = sequence.request, sequence.usage()
        self.account_prefill(sequence)
        self.ended += 1
        self.ended_well += not error
        queued, prefill, decode = spans(sequence, now)
        if not request.background:
            self._count(sequence, outcome, now)
        fields: dict[str, object] = {
            "id": request.id,
            "seq_id": sequence.seq_id,
            "endpoint": request.endpoint,
            "client": request.client,
            "session": session_hash(request.session),
            "outcome": outcome,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "queue_seconds": round(queued, 6),
            "prefill_seconds": round(prefill, 6),
            "decode_seconds": round(decode, 6),
        }
        if error:
            fields["error"] = error
        self._lines.append((sequence.seq_id, fields))

    def write_lines(self) -> None:
        """Write the one canonical line of each request that has ended since the last call.

        Called when what the requests left has been offered to the cache, whose word it carries.
        """
        lines, self._lines = self._lines, []
        for seq_id, fields in lines:
            decided = self._decided.take(seq_id)
            fields["entry"] = decided.entry
            fields["adopt_reject"] = decided.adopt_reject
            fields["donate_reject"] = decided.donate_reject
            _request_log.info("request", extra={"fields": fields})

    def _count(self, sequence: Sequence, outcome: str, now: float) -> None:
        self.completion_tokens += sequence.usage().completion_tokens
        self._outcomes[sequence.request.endpoint, outcome] += 1
        queued, prefill, decode = spans(sequence, now)
        for name, seconds in (
            ("request_queue_seconds", queued),
            ("request_prefill_seconds", prefill),
            ("request_decode_seconds", decode),
            ("request_seconds", now - sequence.submitted_at),
        ):
            self.observe(name, seconds)

    def mean_request_seconds(self) -> float:
        """The mean time from submission to the end, 0 if none has ended."""
        seen = self._histograms["request_seconds"].snapshot()
        return seen.total / seen.count if seen.count else 0.0

    def outcomes(self) -> dict[tuple[str, str], int]:
        """A copy of the outcome counters."""
        return dict(self._outcomes)

    def histograms(self) -> dict[str, HistogramSnapshot]:
        """A copy of every histogram."""
        return {name: histogram.snapshot() for name, histogram in self._histograms.items()}


def spans(sequence: Sequence, now: float) -> tuple[float, float, float]:
    """Seconds that a sequence spent waiting, in prefill and in decode, up to now."""
    prefill_at, decode_at = sequence.prefill_started_at, sequence.decode_started_at
    queued = (prefill_at if prefill_at is not None else now) - sequence.submitted_at
    prefill = 0.0
    if prefill_at is not None:
        prefill = (decode_at if decode_at is not None else now) - prefill_at
    decode = now - decode_at if decode_at is not None else 0.0
    return queued, prefill, decode
