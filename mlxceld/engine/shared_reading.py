"""Changing how running sequences read the blocks that they share, when a way has failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxceld.engine.batch import DecodeBatch
    from mlxceld.engine.row_reading import RowReading
    from mlxceld.engine.sequence import Sequence
    from mlxceld.kv.shared_attention import SharingError


class SharedReading:
    """What runs reads shared blocks as ``reading`` has it; one that fails gives place to the next.

    In place, then gathered, then each row with a copy of its own.
    """

    def __init__(
        self, reading: RowReading, batch: DecodeBatch, in_flight: Callable[[], list[Sequence]]
    ) -> None:
        self._reading = reading
        self._batch = batch
        self._in_flight = in_flight

    def fall_back(self, error: SharingError) -> None:
        """Read in the next best way from now on, all that runs included. No step is in flight."""
        self._reading.fall_back(str(error))
        self.apply()

    def apply(self) -> None:
        """Let all that runs read as ``reading`` has it now. No step is in flight."""
        if not self._reading.reads_together:
            decoding = [row for row in self._batch.rows if row.block_table]
            self._batch.leave(decoding, lambda _: True)
            for sequence in self._in_flight():
                self._reading.page_in(sequence)
            for row in decoding:
                self._batch.join([row], None)
        self._batch.find_prefixes()
