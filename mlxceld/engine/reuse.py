"""What every way of reuse does alike: names, matches, and refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlxceld.prompt_cache.key import Bucket
from mlxceld.prompt_cache.match import Match, Purpose, Query
from mlxceld.prompt_cache.rejects import RejectReason

if TYPE_CHECKING:
    from mlxceld.engine.sequence import Sequence
    from mlxceld.prompt_cache.entry_store import EntryStore


def bucket_of(model_id: str, sequence: Sequence) -> Bucket:
    """The namespace in which a sequence's tokens mean the same."""
    return Bucket(model_id, sequence.request.template_signature)


def carried_match(store: EntryStore[Any], model_id: str, sequence: Sequence) -> Match[Any]:
    """The match that a sequence carries, brought up to date, or a new one of all that it knows."""
    if sequence.match is None:
        query = Query.of(bucket_of(model_id, sequence), sequence.request.session, sequence.known())
        sequence.match = store.match(query)
    else:
        sequence.match = store.renew(sequence.match)
    return sequence.match


def purpose_of(sequence: Sequence) -> Purpose:
    """What an adoption counts as; every one after the first is that of a preempted request."""
    if sequence.looked_up:
        return Purpose.RESUMED
    sequence.looked_up = True
    return Purpose.BACKGROUND if sequence.request.background else Purpose.REQUEST


def worth_keeping(store: EntryStore[Any], sequence: Sequence) -> bool:
    """Whether a store would look at what a sequence has computed."""
    return store.enabled and sequence.num_kv_tokens >= store.min_prefix


def offered_before(sequence: Sequence) -> bool:
    """Whether a sequence had to make way and holds nothing since: what it had was offered then."""
    return sequence.num_recomputed_tokens > 0 and not sequence.num_kv_tokens


def reject_without_row(store: EntryStore[Any], sequence: Sequence) -> None:
    """Record that a sequence ended without anything to store, or that nothing is stored at all."""
    store.reject(
        RejectReason.EMPTY_SET if store.enabled else RejectReason.DISABLED,
        session=sequence.request.session,
        seq_id=sequence.seq_id,
        context_len=sequence.num_kv_tokens,
    )
