"""What the engine publishes about itself after every step, for status, metrics and the admin API.

All of it is immutable and holds plain values only, so that any thread may read the newest
snapshot without a lock and without touching an array.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from mlxceld.telemetry.cache_stats import CacheStats
from mlxceld.telemetry.histogram import HistogramSnapshot


class EngineState(enum.StrEnum):
    """Where the engine is in its life."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """The loaded model, as users are told of it.

    ``layer_caches`` counts the model's caches by kind (pageable, windowed, recurrent, composite,
    opaque); ``batching`` is the batch probe's verdict with, in ``batching_reason``, why it is not
    "full". ``reuse`` is how prompts are reused: blocks, snapshots, whole prefixes, or not at all,
    with, in ``reuse_reason``, what the self-check found wrong. ``sharing`` is how several rows read
    the same stored blocks (empty where none are), ``sharing_reason`` why not where they lie.
    ``checked_at`` is the Unix time at which all of this was found, perhaps by an earlier start.
    ``template_steps`` are the steps by
    which conversations are fitted to the chat template, and what each does.
    """

    id: str
    path: str
    family: str
    device: str
    dtype: str
    context_length: int
    vocab_size: int
    parameters: int
    weight_bytes: int
    layer_caches: Mapping[str, int]
    batching: str
    batching_reason: str
    loaded_at: float
    reuse: str = ""
    reuse_reason: str = ""
    sharing: str = ""
    sharing_reason: str = ""
    checked_at: float = 0.0
    template_steps: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """One request in flight. ``phase`` is waiting, prefill or decode; ages are seconds."""

    id: str
    seq_id: int
    endpoint: str
    client: str | None
    session: str
    phase: str
    prompt_tokens: int
    cached_tokens: int
    prefilled_tokens: int
    generated_tokens: int
    max_tokens: int
    age_seconds: float
    stream: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class RejectStatus:
    """The newest refusal for one reason; see ``last_reject_*`` of the cache's statistics."""

    seq_id: int | None
    context_len: int
    at_unix_ms: int


@dataclass(frozen=True, slots=True)
class MemoryStatus:
    """MLX's allocator, in bytes: in use, the most so far, kept for reuse, and what it may take."""

    active: int = 0
    peak: int = 0
    cache: int = 0
    limit: int = 0


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One consistent reading of the engine.

    ``heartbeat`` is the monotonic clock at which the engine's loop last turned; ``steps`` counts
    forward passes, ``faults`` engine faults since the start. ``fault`` says why requests are not
    to be sent: several faults came in a row, and no request has ended well since. ``histograms``
    and ``outcomes`` are keyed by the metric's name without prefix, and by (endpoint, outcome),
    ``newest_rejects`` by the reason. ``snapshot_tokens_reused`` is the part of the prompt tokens
    reused that came from snapshots; ``trace_events_dropped`` counts what readers of the live trace
    were too slow for.
    """

    state: EngineState = EngineState.LOADING
    detail: str = ""
    model: ModelStatus | None = None
    heartbeat: float = 0.0
    busy: bool = False
    waiting: int = 0
    running: int = 0
    steps: int = 0
    tokens_generated: int = 0
    snapshot_tokens_reused: int = 0
    preemptions: int = 0
    queue_rejections: int = 0
    faults: int = 0
    fault: str = ""
    longest_chunk_seconds: float = 0.0
    longest_decode_step_seconds: float = 0.0
    memory: MemoryStatus = field(default_factory=MemoryStatus)
    requests: tuple[RequestStatus, ...] = ()
    cache: CacheStats = field(default_factory=CacheStats)
    outcomes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    histograms: Mapping[str, HistogramSnapshot] = field(default_factory=dict)
    newest_rejects: Mapping[str, RejectStatus] = field(default_factory=dict)
    trace_enabled: bool = False
    trace_events_dropped: int = 0
