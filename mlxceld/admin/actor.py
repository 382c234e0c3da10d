"""Who is at the other end of an admin connection."""

from __future__ import annotations

import socket

from aiohttp import web

from mlxceld.admin.access import FINGERPRINT
from mlxceld.config.peer import peer_uid


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
