"""Items with identifiers, one line each, on a terminal of any width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_GAP = 2
"""Blanks between two columns."""

_ID_CELLS = 8
"""Characters of an identifier that are shown at least."""


class RowListing:
    """One row an item under headings, and one line a row however narrow the terminal is.

    A heading that ends in ``>`` is of a column of numbers. Where the columns do not fit, those of
    ``identifiers`` are cut to the shortest length at which they still differ, from 8 characters
    on, and then those of ``dropped`` are left out, one by one in their order.
    """

    def __init__(
        self,
        headers: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        identifiers: Sequence[str] = (),
        dropped: Sequence[str] = (),
    ) -> None:
        self._headers = list(headers)
        self._rows = [list(row) for row in rows]
        self._identifiers = frozenset(identifiers)
        self._dropped = dropped

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table that fits into the console's width."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        columns = self._fitting(options.max_width)
        for header, _ in columns:
            table.add_column(
                header.removesuffix(">"),
                justify="right" if header.endswith(">") else "left",
                no_wrap=True,
                overflow="ellipsis",
            )
        for number in range(len(self._rows)):
            table.add_row(*(Text(cells[number]) for _, cells in columns))
        yield table

    def _fitting(self, width: int) -> list[tuple[str, list[str]]]:
        """The columns, each with its heading and its cells."""
        columns = [
            (header, [row[at] for row in self._rows]) for at, header in enumerate(self._headers)
        ]
        if _width(columns) > width:
            columns = [
                (header, shortened(cells) if header in self._identifiers else cells)
                for header, cells in columns
            ]
        for name in self._dropped:
            if _width(columns) <= width:
                break
            columns = [column for column in columns if column[0] != name]
        return columns


def shortened(cells: Sequence[str]) -> list[str]:
    """Identifiers cut to one length at which those that differ still do."""
    for length in range(_ID_CELLS, max(map(len, cells), default=0)):
        if len({cell[:length] for cell in cells}) == len(set(cells)):
            return [cell[:length] for cell in cells]
    return list(cells)


def _width(columns: Sequence[tuple[str, Sequence[str]]]) -> int:
    from rich.cells import cell_len

    widths = [
        max([len(header.removesuffix(">")), *map(cell_len, cells)]) for header, cells in columns
    ]
    return sum(widths) + _GAP * len(widths)
