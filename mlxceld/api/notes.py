"""What a request carried that cannot be honoured: skipped, and said in the log and the answer."""

from __future__ import annotations

import logging

from aiohttp import web

from mlxceld.api.context import CLIENT, REQUEST_ID

HEADER = "X-Mlxceld-Notes"
"""The response header with a request's notes, parted by semicolons."""

NOTES: web.RequestKey[list[str]] = web.RequestKey("notes", list[str])

_SHOWN = 8
"""Notes that are written out; a long history may bring the same one many times."""

log = logging.getLogger(__name__)


class Notes:
    """Collects what one request's conversion skips; each reason is kept once."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}

    def skip(self, param: str, what: str) -> None:
        """``param`` is the field's path, ``what`` says what it was and why it is left out."""
        self._texts.setdefault(f"{param}: {what}")

    @property
    def texts(self) -> list[str]:
        """The notes, in the order in which they came; a last one counts those left out."""
        texts = list(self._texts)
        rest = len(texts) - _SHOWN
        return texts if rest <= 0 else [*texts[:_SHOWN], f"and {rest} more"]


def tell(request: web.Request, notes: Notes) -> list[str]:
    """Log a request's notes in one line and have its response carry them; returns them."""
    texts = notes.texts
    if texts:
        request[NOTES] = texts
        client = request.get(CLIENT)
        log.info(
            "request %s: skipped %s%s",
            request[REQUEST_ID],
            "; ".join(texts),
            f" (client {client})" if client else "",
        )
    return texts


def header_value(texts: list[str]) -> str:
    """Notes as a header's value: printable ASCII, of bounded length."""
    text = "; ".join(texts).encode("ascii", "replace").decode()
    return "".join(character if " " <= character <= "~" else "?" for character in text)[:1000]
