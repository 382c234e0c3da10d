"""Who is at the other end of a Unix socket, as the kernel knows it."""

from __future__ import annotations

import socket
import struct
import sys
from typing import Protocol

# What macOS calls these; the socket module does not export them.
_SOL_LOCAL = 0
_LOCAL_PEERCRED = 0x001
_LOCAL_PEERPID = 0x002


class _HasSocketOptions(Protocol):
    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def peer_uid(peer: _HasSocketOptions) -> int | None:
    """The user at the other end of a connected Unix socket; None where the system cannot tell."""
    try:
        if sys.platform == "darwin":
            # struct xucred begins with a version and the uid.
            raw = peer.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 76)
            return int(struct.unpack_from("=II", raw)[1])
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", raw)[1])
    except (OSError, struct.error):
        return None


def peer_pid(peer: _HasSocketOptions) -> int | None:
    """The process at the other end; of a connection to a listener, the one that listens."""
    try:
        if sys.platform == "darwin":
            raw = peer.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, struct.calcsize("i"))
            return int(struct.unpack("i", raw)[0])
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", raw)[0]) or None
    except (OSError, struct.error):
        return None
