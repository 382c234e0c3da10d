"""Who is at the other end of an admin connection."""

from __future__ import annotations

import socket
import struct
import sys
from typing import Protocol

from aiohttp import web

from mlxceld.admin.access import FINGERPRINT

# What macOS calls these; the socket module does not export them.
_SOL_LOCAL = 0
_LOCAL_PEERCRED = 0x001
_LOCAL_PEERPID = 0x002


class _HasSocketOptions(Protocol):
    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def actor_of(request: web.Request) -> str:
    """The caller's name in the audit log: ``uid:501``, ``token:4f2a91c0`` or ``unknown``.

    The last where no one vouches: the token's digits are of its digest.
    """
    fingerprint = request.get(FINGERPRINT)
    if fingerprint is not None:
        return f"token:{fingerprint}"
    transport = request.transport
    peer = transport.get_extra_info("socket") if transport is not None else None
    uid = peer_uid(peer) if peer is not None and peer.family == socket.AF_UNIX else None
    return "unknown" if uid is None else f"uid:{uid}"


def peer_uid(peer: _HasSocketOptions) -> int | None:
    """The user at the other end of a connected Unix socket, as the kernel knows it."""
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
