"""Which sequences are admitted, and which prompt is computed next."""

from __future__ import annotations

from collections import deque

from mlxceld.engine.sequence import Phase, Sequence

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

    def __init__(self, max_active: int, *, padded_prefill: bool) -> None:
        self._max_active = max_active
        self._padded_prefill = padded_prefill
        self._waiting: deque[Sequence] = deque()
        self._prefilling: list[Sequence] = []
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
        self._waiting.append(sequence)

    def admit(self, decoding: int) -> list[Sequence]:
        """Give free places to those that have waited longest; ``decoding`` are taken already."""
        admitted = []
        while self._waiting and decoding + len(self._prefilling) < self._max_active:
            sequence = self._waiting.popleft()
            sequence.phase = Phase.PREFILL
            self._prefilling.append(sequence)
            admitted.append(sequence)
        return admitted

    def can_admit(self, decoding: int) -> bool:
        """Whether :meth:`admit` would give anybody a place."""
        return bool(self._waiting) and decoding + len(self._prefilling) < self._max_active

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it stands; nothing happens if it is not here."""
        if sequence in self._prefilling:
            self._prefilling.remove(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

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
        if _goes_alone(group[0]):
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
            if padded > chunk or wasteful or (unequal and not self._padded_prefill):
                continue
            group.append(sequence)
            tokens, widest = tokens + left, wider
        return group


def _goes_alone(sequence: Sequence) -> bool:
    """Whether a sequence is computed by itself.

    Padding would move the past of a row that brings adopted tokens, but for those that it reads
    from the pool; and from a merged row nothing can be shared with those who follow it.
    """
    brought = sequence.prefilled - sequence.paged_tokens
    most = _SMALL_PAST if sequence.table else 0
    return bool(brought > most or sequence.followers or not sequence.prefill_left)
