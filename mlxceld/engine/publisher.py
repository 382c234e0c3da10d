"""Builds the immutable snapshots that status, metrics and the admin API read. No MLX at import."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields as _fields
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlxceld.engine.recorder import Recorder
from mlxceld.prompt_cache.key import session_hash
from mlxceld.prompt_cache.stats import fill
from mlxceld.telemetry.cache_stats import CacheStats
from mlxceld.telemetry.status import (
    EngineState,
    EngineStatus,
    MemoryStatus,
    ModelStatus,
    RejectStatus,
    RequestStatus,
)

if TYPE_CHECKING:
    from mlxceld.config import Settings
    from mlxceld.engine.core import EngineCore
    from mlxceld.engine.prefetch import PrefetchCounters
    from mlxceld.engine.prefix_cache import PrefixMemory
    from mlxceld.engine.sequence import Sequence
    from mlxceld.models.budgets import Capacities
    from mlxceld.prompt_cache.prompt_cache import PromptCache
    from mlxceld.prompt_cache.trace import Trace

log = logging.getLogger(__name__)

_PUBLISH_SECONDS = 0.02
"""While nobody joins or leaves, a snapshot may be this old: building one costs a part of a step."""

_FAULTS_UNTIL_UNREADY = 3
"""Faults in a row after which readiness says so; a request that ends well clears them."""


class Publisher:
    """Keeps the newest snapshot, replaced as a whole; readers need no lock."""

    def __init__(
        self,
        settings: Settings,
        cache: PromptCache,
        trace: Trace,
        clock: Callable[[], float],
    ) -> None:
        self.recorder = Recorder(cache.rejects.outcomes)
        self.model: ModelStatus | None = None
        self.reuse: PrefixMemory | None = None
        self.capacities: Capacities | None = None
        self.prefetch: PrefetchCounters | None = None
        self.faults_in_a_row = 0
        self._settings = settings
        self._stored = cache
        self._trace = trace
        self._clock = clock
        # Held for the assignment only: the trace is switched from another thread.
        self._replacing = threading.Lock()
        self._fault_text = ""
        self._shape: object = None
        self._published_at = -math.inf
        self._snapshot = EngineStatus(
            heartbeat=clock(), cache=self._cache(0), trace_enabled=trace.enabled
        )

    @property
    def status(self) -> EngineStatus:
        """The newest snapshot."""
        return self._snapshot

    def state(self, state: EngineState, detail: str) -> None:
        """Publish a change of state."""
        self._shape = None
        self._replace(
            replace(
                self._snapshot,
                state=state,
                detail=detail,
                model=self.model,
                heartbeat=self._clock(),
                cache=self._cache(0),
                memory=_memory() if self.model is not None else MemoryStatus(),
            )
        )

    def trace_switched(self) -> None:
        """Publish that the trace was switched; for any thread."""
        with self._replacing:
            self._snapshot = replace(self._snapshot, trace_enabled=self._trace.enabled)

    def _replace(self, snapshot: EngineStatus) -> None:
        with self._replacing:
            self._snapshot = replace(snapshot, trace_enabled=self._trace.enabled)

    def fault(self, error: Exception) -> None:
        """Remember an engine fault."""
        self.recorder.faults += 1
        self.faults_in_a_row += 1
        if self.faults_in_a_row >= _FAULTS_UNTIL_UNREADY:
            self._fault_text = (
                f"{self.faults_in_a_row} engine faults in a row,"
                f" the last: {type(error).__name__}: {error}"
            )
            log.error("not ready: %s", self._fault_text)

    def clear_faults(self) -> None:
        """A request has ended well since the last fault."""
        self.faults_in_a_row = 0
        self._fault_text = ""

    def retry_after(self) -> int:
        """Seconds after which a place in the queue is likely to be free."""
        waiting = self._snapshot.waiting
        rounds = 1 + waiting / self._settings.max_batch_size
        return max(1, min(60, math.ceil(self.recorder.mean_request_seconds() * rounds)))

    def publish(
        self,
        state: EngineState,
        core: EngineCore,
        *,
        queued: int,
        queue_rejections: int,
        turned_away: Mapping[str, int],
        force: bool,
    ) -> None:
        """Replace the snapshot, unless a fresh enough one of the same requests is there."""
        now = self._clock()
        ahead = (self.prefetch.run, self.prefetch.skipped) if self.prefetch is not None else ()
        # What ended is stored a step later, and then nobody may be left whose steps would tell.
        ended = self.recorder.ended
        shape = (queued, core.running, core.busy, ended, queue_rejections, state, ahead)
        if not force and shape == self._shape and now - self._published_at < _PUBLISH_SECONDS:
            return
        self._shape, self._published_at = shape, now
        recorder = self.recorder
        snapshot = EngineStatus(
            state=state,
            detail=self._snapshot.detail,
            model=self.model,
            heartbeat=now,
            busy=core.busy,
            waiting=queued,
            running=core.running,
            steps=recorder.steps,
            tokens_generated=recorder.tokens_generated,
            preemptions=recorder.preemptions,
            snapshot_tokens_reused=recorder.snapshot_tokens_reused,
            queue_rejections=queue_rejections,
            faults=recorder.faults,
            fault=self._fault_text,
            longest_chunk_seconds=core.longest_chunk_seconds,
            longest_decode_step_seconds=recorder.longest_decode_step_seconds,
            memory=_memory(),
            requests=tuple(_request(s, now) for s in core.sequences()),
            cache=self._cache(core.batch_bytes()),
            outcomes=recorder.outcomes() | {(e, "rejected"): n for e, n in turned_away.items()},
            histograms=recorder.histograms(),
            newest_rejects={
                reason.value: RejectStatus(last.seq_id, last.context_len, last.at_unix_ms)
                for reason, last in self._stored.rejects.newest.items()
            },
            trace_events_dropped=self._trace.dropped,
        )
        self._replace(snapshot)

    def _cache(self, batch_bytes: int) -> CacheStats:
        """One reading of all that is counted; gathered first, since each copy costs a step."""
        recorder, apc, reuse = self.recorder, self._settings.apc, self.reuse
        pool = None if reuse is None else reuse.pool_stats()
        fields: dict[str, Any] = {
            "block_size": apc.block_size,
            "hash": apc.hash,
            "prompt_tokens": recorder.prompt_tokens,
            "prompt_tokens_computed": recorder.prompt_tokens_computed,
            "prompt_tokens_reused": recorder.prompt_tokens_reused,
            "completion_tokens": recorder.completion_tokens,
            "background_tokens_computed": recorder.background_tokens_computed,
        }
        if self.capacities is not None:
            fields["capacity_derivation"] = self.capacities.kv.derivation
            fields["snapshot_capacity_derivation"] = self.capacities.snapshots.derivation
        if self.prefetch is not None:
            fields["prefetch_run"] = self.prefetch.run
            fields["prefetch_skipped"] = self.prefetch.skipped
            fields["prefetch_tokens"] = self.prefetch.tokens
            fields["background_tokens_computed"] += self.prefetch.tokens
        if pool is not None:
            fields["batch_tail_bytes"] = batch_bytes
            fields.update({f"paged_{one.name}": getattr(pool, one.name) for one in _fields(pool)})
        return fill(CacheStats(**fields), self._stored)


def _request(sequence: Sequence, now: float) -> RequestStatus:
    request = sequence.request
    return RequestStatus(
        id=request.id,
        seq_id=sequence.seq_id,
        endpoint=request.endpoint,
        client=request.client,
        session=session_hash(request.session),
        phase=sequence.phase.value,
        prompt_tokens=len(request.tokens),
        cached_tokens=sequence.cached,
        prefilled_tokens=sequence.prefilled,
        generated_tokens=len(sequence.generated),
        max_tokens=sequence.max_tokens,
        age_seconds=now - sequence.submitted_at,
        stream=request.stream,
        note=sequence.note,
    )


def _memory() -> MemoryStatus:
    # Imported here, since the daemon loads this module before it decides how MLX is loaded.
    import mlx.core as mx

    return MemoryStatus(
        active=mx.get_active_memory(),
        peak=mx.get_peak_memory(),
        cache=mx.get_cache_memory(),
        limit=mx.get_memory_limit(),
    )
