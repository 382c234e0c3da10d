"""What a request would reuse, and why not more: a dry run that counts nothing."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlxceld.prompt_cache.departures import Departure
from mlxceld.prompt_cache.key import Bucket, session_hash
from mlxceld.prompt_cache.match import Query
from mlxceld.prompt_cache.rejects import RejectReason

if TYPE_CHECKING:
    from mlxceld.prompt_cache.entry_store import EntryStore
    from mlxceld.prompt_cache.stored_prefix import StoredPrefix

MOST_RENDERINGS = 64
"""How many other namespaces a report names, those that share most first."""


class ExplainOutcome(enum.StrEnum):
    """How the adoption would go."""

    HIT = "hit"
    MISS = "miss"
    REJECT = "reject"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class ExplainEntry:
    """The stored entry that shares most with the prompt: what of it may be told.

    ``tokens`` is its length, ``matched_tokens`` how many leading ones the prompt has too. Times
    are seconds; the session is hashed.
    """

    kind: str
    session: str
    same_session: bool
    tokens: int
    matched_tokens: int
    age_seconds: float
    idle_seconds: float
    hits: int
    client: str | None


@dataclass(frozen=True, slots=True)
class OtherRendering:
    """Prompts that were rendered in another way: nothing is shared with them, whatever matches."""

    signature: str
    matched_tokens: int
    entries: int


@dataclass(frozen=True, slots=True)
class ExplainReport:
    """A request's way through the cache, foretold.

    ``reason`` is what its adoption would record, ``donation_reason`` what storing the prompt
    without an answer would. ``diverges_at`` is the index of the first token that differs from the
    nearest ``entry``; None where the entry or the prompt ends before. An entry that shares fewer
    than ``min_prefix`` tokens is none. ``other_session`` is the longest snapshot that the prompt
    begins with and that only another session can resume from, if it is longer than what is
    reused. ``departure`` is an entry of more tokens that has left.
    """

    outcome: ExplainOutcome
    store: str
    kind: str
    prompt_tokens: int
    reused_tokens: int
    min_prefix: int
    reason: RejectReason | None = None
    donation_reason: RejectReason | None = None
    entry: ExplainEntry | None = None
    diverges_at: int | None = None
    other_renderings: tuple[OtherRendering, ...] = ()
    other_session: ExplainEntry | None = None
    departure: Departure | None = None
    entries: int = 0


def explain(
    store: EntryStore[Any], bucket: Bucket, session: str, tokens: Sequence[int]
) -> ExplainReport:
    """Explain a request to a store of prefixes. What has outlived its time is swept before."""
    store.sweep()
    match = store.match(Query.of(bucket, session, tokens))
    matched, reason = match.matched, match.rejected
    entry = at = None
    others = []
    for candidate, depth, nearest in store.nearest(tokens):
        if depth < store.min_prefix:
            continue
        if candidate == bucket:
            entry = _entry(store, nearest, depth, session)
            at = depth if depth < min(len(nearest.tokens), len(tokens)) else None
        elif candidate.model == bucket.model:
            signature = candidate.template_signature
            others.append(OtherRendering(signature, depth, store.bucket_size(candidate)))
    others.sort(key=lambda other: -other.matched_tokens)
    return ExplainReport(
        outcome=_outcome(store, matched, reason),
        store=store.name,
        kind=store.kind,
        prompt_tokens=len(tokens),
        reused_tokens=matched,
        min_prefix=store.min_prefix,
        reason=reason,
        donation_reason=store.would_refuse(len(tokens)),
        entry=entry,
        diverges_at=at,
        other_renderings=tuple(others[:MOST_RENDERINGS]),
        other_session=_of_another_session(store, bucket, session, tokens, matched),
        departure=_departure(store, bucket, tokens, max(matched, store.min_prefix - 1)),
        entries=len(store),
    )


def _of_another_session(
    store: EntryStore[Any], bucket: Bucket, session: str, tokens: Sequence[int], matched: int
) -> ExplainEntry | None:
    """The longest entry that all of is a beginning of the prompt, and that is another session's."""
    if not store.by_session:
        return None
    found = store.longest_whole(bucket, tokens, len(tokens) - 1)
    if found is None or len(found.tokens) <= matched or found.session == session:
        return None
    return _entry(store, found, len(found.tokens), session)


def _departure(
    store: EntryStore[Any], bucket: Bucket, tokens: Sequence[int], more_than: int
) -> Departure | None:
    found = store.departures.nearest(bucket, tokens, store.now())
    return found if found is not None and found.matched_tokens > more_than else None


def _outcome(store: EntryStore[Any], matched: int, reason: RejectReason | None) -> ExplainOutcome:
    if not store.enabled:
        return ExplainOutcome.DISABLED
    if matched:
        return ExplainOutcome.HIT
    return ExplainOutcome.MISS if reason is None else ExplainOutcome.REJECT


def _entry(store: EntryStore[Any], found: StoredPrefix, depth: int, session: str) -> ExplainEntry:
    now = store.now()
    return ExplainEntry(
        kind=store.kind,
        session=session_hash(found.session),
        same_session=found.session == session,
        tokens=len(found.tokens),
        matched_tokens=depth,
        age_seconds=now - found.created,
        idle_seconds=now - found.last_used,
        hits=found.hits,
        client=found.client,
    )
