"""Which sequences are admitted, and which prompt is computed next."""

from __future__ import annotations

from mlxceld.engine import sharing
from mlxceld.engine.sequence import Phase, Sequence
from mlxceld.engine.waiting import WaitingLine

_MOST_PADDING = 1.5
"""A group may be padded to at most this many times its own tokens."""

_SMALL_PAST = 64
"""Tokens in a row of its own that a sequence which reads the pool may bring into a group."""


class Scheduler:
    """Holds the sequences that wait and those whose prompt is being computed.

    Short prompts, those that fit one chunk, are computed together; a long one alone, chunk by
    chunk. When both are there they take turns, so that a short prompt does not wait for a long
    one beside it, nor a long one for a stream of short ones.
    """

    def __init__(
        self, max_active: int, *, padded_prefill: bool, grouped_prefill: bool = True
    ) -> None:
        """``grouped_prefill``: prompts of one length may share a forward pass; ``padded_prefill``:
        others, too.
        """
        self._max_active = max_active
        self.padded_prefill = padded_prefill
        self.grouped_prefill = grouped_prefill
        self._waiting = WaitingLine()
        self._prefilling: list[Sequence] = []
        self.orphans: list[Sequence] = []
        self._long_is_next = False

    @property
    def waiting(self) -> int:
        """How many sequences wait for a place."""
        return len(self._waiting)

    @property
    def prefilling(self) -> int:
        """How many sequences are between admission and their first token."""
        return len(self._prefilling)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self._waiting.add(sequence)

    def add_back(self, sequence: Sequence) -> None:
        """Queue a sequence that was running; it comes before all others."""
        self._waiting.add_back(sequence)

    def next_in_line(self, decoding: int) -> Sequence | None:
        """Whose turn it is to get a place; None if there is none, ``decoding`` taken already."""
        if decoding + len(self._prefilling) >= self._max_active:
            return None
        return self._waiting.first()

    def admit(self) -> Sequence:
        """Give :meth:`next_in_line` its place."""
        sequence = self._waiting.take()
        sequence.phase = Phase.PREFILL
        self._prefilling.append(sequence)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it stands; nothing happens if it is not here.

        Those that followed it become orphans.
        """
        if sequence in self._prefilling:
            self._prefilling.remove(sequence)
        else:
            self._waiting.remove(sequence)
        sharing.unfollow(sequence)
        self.orphans += sharing.orphan_followers(sequence)

    def take_orphans(self) -> list[Sequence]:
        """Those whose leader has gone, to be placed anew once what it had computed is stored."""
        orphans, self.orphans = self.orphans, []
        return [sequence for sequence in orphans if sequence.phase is Phase.PREFILL]

    def computing(self) -> list[Sequence]:
        """The prefilling sequences that do not wait for another one's tokens, oldest first."""
        return [sequence for sequence in self._prefilling if sequence.follows is None]

    def next_group(self, chunk: int) -> list[Sequence]:
        """The sequences whose tokens the next chunk computes.

        Either one sequence, which may need more chunks after this one, or several that together
        fit ``chunk`` tokens with their padding and are done with it. Empty if none is prefilling.
        """
        computing = self.computing()
        short = [s for s in computing if s.prefill_left <= chunk]
        long = [s for s in computing if s.prefill_left > chunk]
        if long and (self._long_is_next or not short):
            self._long_is_next = False
            return long[:1]
        self._long_is_next = bool(long)
        return self._group(short, chunk)

    def _group(self, candidates: list[Sequence], chunk: int) -> list[Sequence]:
        if not candidates:
            return []
        group = candidates[:1]
        if not self.grouped_prefill or _goes_alone(group[0]):
            return group
        tokens = widest = group[0].prefill_left
        for sequence in candidates[1:]:
            left = sequence.prefill_left
            if _goes_alone(sequence):
                continue
            wider = max(widest, left)
            padded = wider * (len(group) + 1)
            wasteful = padded > _MOST_PADDING * (tokens + left)
            unequal = left != widest
            if padded > chunk or wasteful or (unequal and not self.padded_prefill):
                continue
            group.append(sequence)
            tokens, widest = tokens + left, wider
        return group


def _goes_alone(sequence: Sequence) -> bool:
    """Whether a sequence is computed by itself.

    Padding would move the past of a row that brings adopted tokens, but for those that it reads
    from the pool; and from a merged row nothing can be shared with those who follow it. One that
    has to stop on the way is not done with the others.
    """
    end = sequence.prefilled + sequence.prefill_left
    if any(sequence.prefilled < stop < end for stop in sequence.chunk_boundaries):
        return True
    brought = sequence.prefilled - sequence.paged_tokens
    most = _SMALL_PAST if sequence.block_table else 0
    return bool(brought > most or sequence.followers or not sequence.prefill_left)
