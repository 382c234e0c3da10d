"""Who waits for a place: in turn by session, within a session by age."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxceld.engine.sequence import Sequence


class WaitingLine:
    """A queue in which sessions take turns, so that one with many requests holds up no other.

    What was running already and had to make way comes before everything else, the oldest first.
    """

    def __init__(self) -> None:
        self._returned: list[Sequence] = []
        self._sessions: OrderedDict[str, deque[Sequence]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count + len(self._returned)

    def add(self, sequence: Sequence) -> None:
        """A new sequence, behind those of its session."""
        self._sessions.setdefault(sequence.request.session, deque()).append(sequence)
        self._count += 1

    def add_back(self, sequence: Sequence) -> None:
        """A sequence that had its turn and has to have it again."""
        self._returned.append(sequence)
        self._returned.sort(key=lambda returned: returned.seq_id)

    def first(self) -> Sequence | None:
        """Whose turn it is, left where it is."""
        if self._returned:
            return self._returned[0]
        return next((line[0] for line in self._sessions.values()), None)

    def take(self) -> Sequence:
        """The one whose turn it is; its session goes to the end. Raises IndexError if none."""
        if self._returned:
            return self._returned.pop(0)
        for session, line in self._sessions.items():
            sequence = line.popleft()
            self._count -= 1
            if line:
                self._sessions.move_to_end(session)
            else:
                del self._sessions[session]
            return sequence
        raise IndexError("nobody waits")

    def remove(self, sequence: Sequence) -> bool:
        """Forget a sequence; False if it is not here."""
        if sequence in self._returned:
            self._returned.remove(sequence)
            return True
        session = sequence.request.session
        line = self._sessions.get(session)
        if line is None or sequence not in line:
            return False
        line.remove(sequence)
        self._count -= 1
        if not line:
            del self._sessions[session]
        return True
