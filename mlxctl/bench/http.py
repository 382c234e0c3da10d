"""HTTP as lean as measuring wants it: a connection that is open before the clock starts.

A server that is slow to accept has a short queue of connections; those that find it full are tried
again by the system a second later, which would be measured in place of the server's work. So
connections are opened one by one beforehand. What comes is kept as it comes, and read afterwards.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

Piece = tuple[float, bytes]
"""Bytes with the time of their arrival."""

_READ_BYTES = 65536


class ResponseError(Exception):
    """What came is no HTTP response."""


@dataclass
class Connection:
    """An open connection, good for one request."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    url: str

    async def post(
        self, path: str, payload: bytes, clock: Callable[[], float], seen: Callable[[bytes], None]
    ) -> list[Piece]:
        """Send JSON and return all that comes until the server closes; raises OSError."""
        parts = urlsplit(self.url)
        head = (
            f"POST {parts.path}{path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            "Content-Type: application/json\r\nAccept: text/event-stream\r\n"
            f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
        )
        self.writer.write(head.encode() + payload)
        await self.writer.drain()
        pieces = []
        while chunk := await self.reader.read(_READ_BYTES):
            pieces.append((clock(), chunk))
            seen(chunk)
        return pieces

    def close(self) -> None:
        """Let go of it, whether it was used or not."""
        self.writer.close()


async def connect(url: str) -> Connection:
    """Open a connection to a server; raises OSError."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    reader, writer = await asyncio.open_connection(
        parts.hostname, parts.port or (443 if secure else 80), ssl=secure or None
    )
    return Connection(reader, writer, url)


def read_response(pieces: Sequence[Piece]) -> tuple[int, list[Piece]]:
    """A response's status and its body in pieces; raises ResponseError."""
    head, used, at, rest = b"", 0, 0.0, b""
    for used, (at, piece) in enumerate(pieces, 1):  # noqa: B007 - the last ones are used below
        head, end, rest = (head + piece).partition(b"\r\n\r\n")
        if end:
            break
    else:
        raise ResponseError(f"no whole HTTP response came: {head[:200]!r}")
    status = re.match(rb"HTTP/1\.[01] (\d{3})", head)
    if status is None:
        raise ResponseError(f"what came is no HTTP response: {head[:200]!r}")
    body = [(at, rest), *pieces[used:]]
    if re.search(rb"(?im)^transfer-encoding:[^\r\n]*chunked", head):
        body = _without_chunks(body)
    return int(status.group(1)), body


def _without_chunks(pieces: Sequence[Piece]) -> list[Piece]:
    """The content of a chunked body; a piece has the time at which its last byte came."""
    content: list[Piece] = []
    waiting, left = b"", 0
    for at, piece in pieces:
        waiting += piece
        while waiting:
            if left:
                content.append((at, waiting[:left]))
                waiting, left = waiting[left:], max(0, left - len(waiting))
                continue
            line, end, rest = waiting.partition(b"\r\n")
            if not end:
                break
            waiting = rest
            if line:
                try:
                    left = int(line.split(b";")[0], 16)
                except ValueError:
                    raise ResponseError(f"a chunk's size is {line[:40]!r}") from None
                if left == 0:
                    return content
    return content
