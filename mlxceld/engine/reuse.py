"""What sequences take from the prompt cache before prefill, and give to it at their end."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any, Protocol

import mlx.core as mx

from mlxceld.engine.reuse_plan import ReuseKind
from mlxceld.kv import row_caches
from mlxceld.kv.memory import release_freed
from mlxceld.kv.row_caches import Caches
from mlxceld.prompt_cache.key import Bucket
from mlxceld.prompt_cache.match import Match, Purpose, Query
from mlxceld.prompt_cache.rejects import RejectReason

if TYPE_CHECKING:
    from mlxceld.engine.sequence import Sequence
    from mlxceld.engine.shared_probe import SharingVerdict
    from mlxceld.kv.pool import PoolStats
    from mlxceld.kv.shared_prefix import SharedPrefix
    from mlxceld.kv.slabs import LayerShape
    from mlxceld.prompt_cache.block_entry import ChainStats
    from mlxceld.prompt_cache.ledger import Ledger
    from mlxceld.prompt_cache.whole_entry import Entry
    from mlxceld.prompt_cache.whole_store import PrefixStore

log = logging.getLogger(__name__)


class PromptReuse(Protocol):
    """What the core asks before a prefill and at a sequence's end.

    All of it but :meth:`wants` only while no step is in flight: it may write
    to memory that a step reads.
    """

    @property
    def kind(self) -> str:
        """How prompts are reused, in a word or two for status and log."""

    @property
    def store(self) -> Ledger[Any]:
        """Where prompts, or states on their way, are kept."""

    def match(self, sequence: Sequence) -> Match[Any]:
        """What :meth:`adopt` would adopt now, at most all but the last token of the prompt.

        The first time a store is looked up in; the sequence carries what was found, and later it
        is only brought up to date.
        """

    @property
    def version(self) -> int:
        """A number that changes whenever something is stored or leaves."""

    def adopt(self, sequence: Sequence) -> None:
        """Give a sequence what it matches, so that it carries no match any more.

        Sets ``row``, ``prefilled`` and ``cached``; on a miss they stay as they are.
        """

    @property
    def shares_early(self) -> bool:
        """Whether a beginning can be adopted from a sequence that is still in prefill."""

    def share(self, sequence: Sequence) -> None:
        """Store what a sequence in prefill has computed so far; its row stays as it is.

        Nobody fails where that fails: it is logged, and the sequence goes on.
        """

    def page_in(self, sequence: Sequence) -> None:
        """Copy what a sequence reads from the pool into its own row, which holds all of it then."""

    def page_out(self, sequence: Sequence, tokens_at_most: int | None = None) -> None:
        """Put the whole blocks of a sequence's row into the pool, and let it read them there.

        All of its tokens or the first ``tokens_at_most``, and as far as there is room; the rest
        stays in its row.
        """

    def release(self, sequence: Sequence) -> None:
        """Let go of the blocks that a sequence reads; on every way out, after :meth:`donate`."""

    @property
    def block_size(self) -> int:
        """Tokens that are read from the pool or not at all.

        More than any prompt has where an adopter gets all of what it matches into its own row.
        """

    @property
    def token_bytes(self) -> int:
        """Bytes that a token's keys and values take in a row."""

    def reserved(self) -> int:
        """Bytes that what is stored or shared takes."""

    def set_aside(self, nbytes: int) -> None:
        """Leave a part of the budget to what running sequences hold in their rows."""

    def pinned(self, running: Iterable[Sequence], match: Match[Any]) -> int:
        """Bytes that cannot be freed: what is being read, or would be adopted."""

    def free_up(self, most: int, sequences: Iterable[Sequence]) -> None:
        """Give up entries until at most ``most`` bytes are reserved, as far as that can be.

        Blocks may move: what :meth:`prefix_of` gave is void.
        """

    def prefix_of(self, sequences: Seq[Sequence]) -> SharedPrefix | None:
        """What these rows of a batch read from the pool; None if that is nothing."""

    @property
    def reads_together(self) -> bool:
        """Whether several rows of a batch can read the same blocks."""

    @property
    def gathers(self) -> bool:
        """Whether attention is to be given whole rows then, instead of blocks and tails."""

    sharing: SharingVerdict | None
    """How shared blocks are read; None where they are never read where they lie."""

    def block_shapes(self) -> tuple[Seq[LayerShape], int] | None:
        """The layers of the blocks that rows may share, and their size; None without such."""

    def fall_back(self, reason: str) -> None:
        """From now on read shared blocks in the next best way, since this one failed in service.

        Where that is a copy of one's own, the caller calls :meth:`page_in` for who reads the pool.
        """

    def reached(self, sequence: Sequence, row: Callable[[], Caches]) -> None:
        """A sequence in prefill has come to ``prefilled`` tokens; ``row`` gives its caches.

        Nobody fails where keeping its state fails: it is logged, and the sequence goes on.
        """

    def wants(self, sequence: Sequence) -> bool:
        """Whether a sequence's caches will be worth taking out of the batch when it ends."""

    def donate(self, sequence: Sequence) -> None:
        """Store what a sequence computed; a refusal is recorded with its reason."""

    def settle(self, sequences: Iterable[Sequence]) -> None:
        """Give memory back after entries have gone; ``sequences`` are all in flight.

        Blocks may move: what :meth:`prefix_of` gave is void.
        """

    def pool_stats(self) -> PoolStats | None:
        """The block pool's numbers; None without one."""

    def chain_stats(self) -> ChainStats | None:
        """The stored blocks by their hashes; None without blocks."""

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Recount everything; raises AssertionError with the numbers that do not agree."""


def bucket_of(model_id: str, sequence: Sequence) -> Bucket:
    """The namespace in which a sequence's tokens mean the same."""
    return Bucket(model_id, sequence.request.template_signature)


def carried_match(store: Ledger[Any], model_id: str, sequence: Sequence) -> Match[Any]:
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


def worth_keeping(store: Ledger[Any], sequence: Sequence) -> bool:
    """Whether a store would look at what a sequence has computed."""
    return store.enabled and sequence.fed >= store.min_prefix


def offered_before(sequence: Sequence) -> bool:
    """Whether a sequence had to make way and holds nothing since: what it had was offered then."""
    return sequence.had > 0 and not sequence.fed


def reject_without_row(store: Ledger[Any], sequence: Sequence) -> None:
    """Record that a sequence ended without anything to store, or that nothing is stored at all."""
    store.reject(
        RejectReason.EMPTY_SET if store.enabled else RejectReason.DISABLED,
        session=sequence.request.session,
        seq_id=sequence.seq_id,
        context_len=sequence.fed,
    )


class WholePrefixReuse:
    """Whole prefixes with their caches, for any family: a sequence's end is an exact state.

    An adopted entry leaves the store and comes back, longer, when its adopter ends.
    """

    kind = ReuseKind.WHOLE.value
    reads_together = False
    gathers = False
    sharing: SharingVerdict | None = None
    shares_early = False  # a row in use cannot be given away
    block_size = sys.maxsize

    def __init__(
        self, store: PrefixStore[Caches], model_id: str, *, token_bytes: int, max_bytes: int
    ) -> None:
        """``max_bytes`` bounds what is stored together with what is set aside."""
        self.store = store
        self.token_bytes = token_bytes
        self._model_id = model_id
        self._max_bytes = max_bytes
        self._outside = 0

    def adopt(self, sequence: Sequence) -> None:
        """See :class:`PromptReuse`; the entry is used up.

        A sequence that had to make way computes everything anew.
        """
        purpose = purpose_of(sequence)
        if purpose is Purpose.RESUMED:
            return
        match, sequence.match = self.match(sequence), None
        taken = self.store.take(match, seq_id=sequence.seq_id, purpose=purpose)
        if taken is None:
            return
        row = taken.payload
        if surplus := len(taken.entry.tokens) - taken.matched:
            try:
                row_caches.trim(row, surplus)
            except Exception:
                # The entry is gone, and the request goes on cold: slower, never wrong.
                log.exception("an adopted prefix could not be trimmed by %d", surplus)
                self.store.adoption_failed(
                    taken,
                    RejectReason.LAYOUT_CONSTRAINTS,
                    seq_id=sequence.seq_id,
                    purpose=purpose,
                )
                return
        sequence.row = row
        sequence.prefilled = sequence.cached = taken.matched
        sequence.chain_hits = taken.entry.hits

    @property
    def version(self) -> int:
        """See :class:`PromptReuse`."""
        return self.store.version

    def match(self, sequence: Sequence) -> Match[Entry[Caches]]:
        """See :class:`PromptReuse`."""
        return carried_match(self.store, self._model_id, sequence)

    def share(self, sequence: Sequence) -> None:
        """See :class:`PromptReuse`."""

    def page_in(self, sequence: Sequence) -> None:
        """See :class:`PromptReuse`."""

    def page_out(self, sequence: Sequence, tokens_at_most: int | None = None) -> None:
        """See :class:`PromptReuse`."""

    def release(self, sequence: Sequence) -> None:
        """See :class:`PromptReuse`."""

    def reserved(self) -> int:
        """See :class:`PromptReuse`."""
        return self.store.bytes

    def set_aside(self, nbytes: int) -> None:
        """See :class:`PromptReuse`."""
        self._outside = nbytes

    def pinned(self, running: Iterable[Sequence], match: Match[Any]) -> int:
        """See :class:`PromptReuse`; an entry in use has left the store."""
        return 0

    def free_up(self, most: int, sequences: Iterable[Sequence]) -> None:
        """See :class:`PromptReuse`."""
        while self.store.bytes > most and self.store.evict_for_memory():
            pass

    def prefix_of(self, sequences: Seq[Sequence]) -> SharedPrefix | None:
        """See :class:`PromptReuse`."""
        return None

    def reached(self, sequence: Sequence, row: Callable[[], Caches]) -> None:
        """See :class:`PromptReuse`."""

    def wants(self, sequence: Sequence) -> bool:
        """See :class:`PromptReuse`."""
        return worth_keeping(self.store, sequence)

    def donate(self, sequence: Sequence) -> None:
        """See :class:`PromptReuse`."""
        row, sequence.row = sequence.row, None
        tokens = sequence.fed_tokens()
        if not tokens or (row is None and self.wants(sequence)):
            reject_without_row(self.store, sequence)
            return
        nbytes = 0 if row is None else self._settled_bytes(row, sequence)
        self.store.insert(
            bucket_of(self._model_id, sequence),
            sequence.request.session,
            tokens,
            row if row is not None else [],
            nbytes,
            can_trim=row is not None and row_caches.can_trim(row),
            seq_id=sequence.seq_id,
            client=sequence.request.client,
            hits=sequence.chain_hits,
        )

    def _settled_bytes(self, row: Caches, sequence: Sequence) -> int:
        """What a row holds once it is evaluated; if that fails, the donation is refused."""
        try:
            mx.eval(row_caches.arrays(row))
        except Exception:
            self.store.reject(
                RejectReason.LAYOUT_CONSTRAINTS,
                session=sequence.request.session,
                seq_id=sequence.seq_id,
                context_len=sequence.fed,
            )
            raise
        nbytes = row_caches.nbytes(row)
        self.free_up(max(0, self._max_bytes - self._outside - nbytes), ())
        return nbytes

    def fall_back(self, reason: str) -> None:
        """See :class:`PromptReuse`; nothing is shared here."""

    def block_shapes(self) -> tuple[Seq[LayerShape], int] | None:
        """See :class:`PromptReuse`."""
        return None

    def settle(self, sequences: Iterable[Sequence]) -> None:
        """See :class:`PromptReuse`; arrays went with their entries, to MLX's own reserve."""
        release_freed()

    def pool_stats(self) -> PoolStats | None:
        """See :class:`PromptReuse`."""
        return None

    def chain_stats(self) -> ChainStats | None:
        """See :class:`PromptReuse`."""
        return None

    def check(self, sequences: Iterable[Sequence]) -> None:
        """See :class:`PromptReuse`."""
        self.store.check()
