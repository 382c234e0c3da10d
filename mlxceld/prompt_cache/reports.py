"""What the cache tells about itself and takes as orders: plain values that cross threads."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Limits:
    """The live limits of one store: bytes, entries, and seconds without use."""

    capacity_bytes: int
    max_entries: int
    ttl_seconds: float


@dataclass(frozen=True, slots=True)
class Budget:
    """The live limits of both stores. Sizes are bytes, times seconds.

    A capacity or a maximum of 0 disables that store; a time to live of 0 means never.
    """

    capacity_bytes: int
    max_entries: int
    ttl_seconds: float
    snapshot_capacity_bytes: int
    snapshot_max_entries: int
    snapshot_ttl_seconds: float

    @property
    def kv(self) -> Limits:
        """The limits of the store of prefixes."""
        return Limits(self.capacity_bytes, self.max_entries, self.ttl_seconds)

    @property
    def snapshots(self) -> Limits:
        """The limits of the store of snapshots."""
        return Limits(
            self.snapshot_capacity_bytes, self.snapshot_max_entries, self.snapshot_ttl_seconds
        )

    def changed(self, changes: BudgetChange) -> Budget:
        """This budget with what ``changes`` names replaced."""
        values = {}
        for field in fields(self):
            new = getattr(changes, field.name)
            values[field.name] = getattr(self, field.name) if new is None else new
        return Budget(**values)


@dataclass(frozen=True, slots=True)
class BudgetChange:
    """Which limits to change; None leaves a limit as it is."""

    capacity_bytes: int | None = None
    max_entries: int | None = None
    ttl_seconds: float | None = None
    snapshot_capacity_bytes: int | None = None
    snapshot_max_entries: int | None = None
    snapshot_ttl_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class EntryReport:
    """One stored entry, without anything of its text. Sizes are bytes, times seconds.

    ``session`` is hashed. A prefix in the block pool has ``blocks``, those that other entries hold
    too and those that are its own, and ``bytes`` counts them all; anything else has
    ``state_bytes``. ``hits`` counts adoptions, ``pins`` what keeps it from age and use.
    """

    store: str
    digest: str
    session: str
    client: str | None
    tokens: int
    blocks: int | None
    blocks_shared: int | None
    blocks_own: int | None
    state_bytes: int | None
    bytes: int
    age_seconds: float
    idle_seconds: float
    hits: int
    origin: str
    pins: int


@dataclass(frozen=True, slots=True)
class EntryList:
    """Stored entries, the most recently used first; ``total`` counts those left out too."""

    entries: tuple[EntryReport, ...]
    total: int


@dataclass(frozen=True, slots=True)
class PinReport:
    """An entry that is kept whatever its age, or no longer is. ``bytes`` is its whole size."""

    digest: str
    tokens: int
    bytes: int
    pins: int

    @classmethod
    def of(cls, entry: EntryReport) -> PinReport:
        """What of an entry's report is told to whoever pins it."""
        return cls(entry.digest, entry.tokens, entry.bytes, entry.pins)


class GenerationConflictError(Exception):
    """The budget has been changed since the caller looked; ``current`` is its generation now."""

    def __init__(self, given: int, current: int) -> None:
        super().__init__(f"generation is {given}, but the budget's is {current} by now")
        self.current = current


class PinError(Exception):
    """An entry that cannot be kept by a pin; the text says why."""


@dataclass(frozen=True, slots=True)
class FlushReport:
    """What a flush dropped, or would drop when it was a dry run.

    Of ``bytes``, ``deferred_bytes`` are still held by running requests and are freed when these
    end.
    """

    entries: int
    bytes: int
    deferred_bytes: int
    dry_run: bool

    def plus(self, other: FlushReport) -> FlushReport:
        """What this flush and one of another store dropped together."""
        return FlushReport(
            self.entries + other.entries,
            self.bytes + other.bytes,
            self.deferred_bytes + other.deferred_bytes,
            self.dry_run,
        )


@dataclass(frozen=True, slots=True)
class Evicted:
    """What one store gave up for a change of the budget, or would in a dry run.

    Of ``evicted_bytes``, ``deferred_bytes`` are still held by running requests.
    """

    evicted_entries: int
    evicted_bytes: int
    deferred_bytes: int


@dataclass(frozen=True, slots=True)
class ResizeReport:
    """What a change of the budget did, or would do when it was a dry run.

    Of ``evicted_bytes``, ``deferred_bytes`` are still held by running requests. ``generation``
    counts the changes made since the start; a dry run does not move it.
    """

    before: Budget
    after: Budget
    evicted_entries: int
    evicted_bytes: int
    deferred_bytes: int
    generation: int
    dry_run: bool


@dataclass(frozen=True, slots=True)
class VerifyCheck:
    """One thing that was checked about reuse: ``kind`` is a kind of cache, or ``live``.

    A live check compares what goes on from stored state with what is computed cold; ``detail``
    says what was compared, and by how much it differed.
    """

    name: str
    kind: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Whether the loaded model's caches can be stored and adopted without changing an answer."""

    checks: tuple[VerifyCheck, ...]
    tokens_computed: int = 0

    @property
    def passed(self) -> bool:
        """Whether every check did."""
        return all(check.passed for check in self.checks)

    @property
    def reason(self) -> str:
        """What failed, in one line; empty if nothing did."""
        return "; ".join(f"{c.name}: {c.detail}" for c in self.checks if not c.passed)


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One thing that happened in the cache. ``session`` is hashed, ``bytes`` real sizes."""

    at_unix_ms: int
    event: str
    seq_id: int | None = None
    session: str | None = None
    matched_len: int | None = None
    context_len: int | None = None
    reason: str | None = None
    bytes: int | None = None
    store: str | None = None

    def line(self) -> str:
        """The event as its log line, without what does not apply to it."""
        words = [f"apc_event={self.event}"]
        for field in fields(self)[2:]:
            value = getattr(self, field.name)
            if value is not None:
                words.append(f"{field.name}={value}")
        return " ".join(words)
