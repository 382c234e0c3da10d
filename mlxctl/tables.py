"""How answers look as tables: quiet, and the same on a terminal and in a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mlxceld.config.units import readable_bytes

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_BAR_CELLS = 20


def size_text(count: int) -> str:
    """Bytes for people: ``1.5 GiB``."""
    return readable_bytes(count)


def duration_text(seconds: float) -> str:
    """Seconds for people: ``250 ms``, ``12.3 s``, ``4 m 10 s``, ``3 h 2 m``, ``2 d 5 h``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} m"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"


def count_text(number: int) -> str:
    """A count with its thousands apart: ``12,345``."""
    return f"{number:,}"


def ttl_text(seconds: float) -> str:
    """A time to live; 0 is never."""
    return duration_text(seconds) if seconds else "never"


def share_text(part: float, whole: float) -> str:
    """A share in percent; a dash where there is nothing to share."""
    return f"{100 * part / whole:.1f}%" if whole else "-"


def bar(part: float, whole: float) -> str:
    """How full a budget is, in characters that every terminal has."""
    filled = min(_BAR_CELLS, round(_BAR_CELLS * part / whole)) if whole > 0 else 0
    return "[" + "#" * filled + "." * (_BAR_CELLS - filled) + "] " + share_text(part, whole)


def key_values(rows: Iterable[tuple[str, str]]) -> Table:
    """Two columns: what, and how much."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(overflow="fold")
    for key, value in rows:
        table.add_row(Text(key), Text(value))
    return table


def listing(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """One row an item under headings; a heading that ends in ``>`` is of a column of numbers."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        table.add_column(
            header.removesuffix(">"),
            justify="right" if header.endswith(">") else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def section(title: str) -> Text:
    """The heading of one part of a longer answer."""
    from rich.text import Text

    return Text(title, style="bold")
