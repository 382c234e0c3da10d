"""How running rows read what they have adopted: from copies of their own, or where it lies."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxceld.engine.sequence import Sequence
    from mlxceld.engine.shared_probe import SharingVerdict
    from mlxceld.kv.shared_prefix import SharedPrefix
    from mlxceld.kv.slabs import LayerShape


class RowReading(ABC):
    """A row's keys and values lie in its own caches, or the first of them in blocks of a pool.

    Only while no step is in flight.
    """

    sharing: SharingVerdict | None
    """How shared blocks are read; None where they are never read where they lie."""

    @property
    @abstractmethod
    def reads_together(self) -> bool:
        """Whether several rows of a batch can read the same blocks."""

    @property
    @abstractmethod
    def gathers(self) -> bool:
        """Whether attention is to be given whole rows then, instead of blocks and tails."""

    @property
    @abstractmethod
    def block_size(self) -> int:
        """Tokens that are read from the pool or not at all.

        More than any prompt has where an adopter gets all of what it matches into its own row.
        """

    @abstractmethod
    def page_in(self, sequence: Sequence) -> None:
        """Copy what a sequence reads from the pool into its own row, which holds all of it then."""

    @abstractmethod
    def page_out(self, sequence: Sequence, tokens_at_most: int | None = None) -> None:
        """Put the whole blocks of a sequence's row into the pool, and let it read them there.

        All of its tokens or the first ``tokens_at_most``, and as far as there is room; the rest
        stays in its row.
        """

    @abstractmethod
    def release(self, sequence: Sequence) -> None:
        """Let go of the blocks that a sequence reads; on every way out, after it has donated."""

    @abstractmethod
    def prefix_of(self, sequences: Seq[Sequence]) -> SharedPrefix | None:
        """What these rows of a batch read from the pool; None if that is nothing."""

    @abstractmethod
    def block_shapes(self) -> tuple[Seq[LayerShape], int] | None:
        """The layers of the blocks that rows may share, and their size; None without such."""

    @abstractmethod
    def fall_back(self, reason: str) -> None:
        """From now on read shared blocks in the next best way, since this one failed in service.

        Where that is a copy of one's own, the caller calls :meth:`page_in` for who reads the pool.
        """


class OwnRows(RowReading):
    """Every row holds all of its keys and values itself."""

    sharing = None
    reads_together = False
    gathers = False
    block_size = sys.maxsize

    def page_in(self, sequence: Sequence) -> None:
        """See :class:`RowReading`."""

    def page_out(self, sequence: Sequence, tokens_at_most: int | None = None) -> None:
        """See :class:`RowReading`."""

    def release(self, sequence: Sequence) -> None:
        """See :class:`RowReading`."""

    def prefix_of(self, sequences: Seq[Sequence]) -> SharedPrefix | None:
        """See :class:`RowReading`."""
        return None

    def block_shapes(self) -> tuple[Seq[LayerShape], int] | None:
        """See :class:`RowReading`."""
        return None

    def fall_back(self, reason: str) -> None:
        """See :class:`RowReading`; nothing is shared here."""
