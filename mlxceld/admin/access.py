"""Who may use the admin API over TCP: no page of a foreign origin, and nobody without a token."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from mlxceld.admin.errors import AdminError
from mlxceld.admin.tokens import AdminTokens
from mlxceld.web.hosts import HostGuard

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class TcpAccess:
    """What a connection over TCP has to bring; one over the Unix socket needs nothing of it."""

    tokens: AdminTokens
    guard: HostGuard


ACCESS: web.AppKey[TcpAccess] = web.AppKey("admin_tcp_access", TcpAccess)
FINGERPRINT: web.RequestKey[str] = web.RequestKey("token_fingerprint", str)


def over_unix_socket(request: web.Request) -> bool:
    """Whether the kernel has already seen to it that only the owner can call."""
    transport = request.transport
    peer = transport.get_extra_info("socket") if transport is not None else None
    return peer is not None and peer.family == socket.AF_UNIX


@web.middleware
async def tcp_access(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what comes over TCP from a foreign page or without a valid token."""
    access = request.app.get(ACCESS)
    if access is None or over_unix_socket(request):
        return await handler(request)
    host = access.guard.refused_host(request.headers)
    if host is not None:
        raise AdminError(
            403,
            f"the Host {host!r} is not served here; add its name to allowed_hosts",
            code="host_not_allowed",
        )
    shown = _shown_token(request)
    fingerprint = None if shown is None else access.tokens.fingerprint(shown)
    if fingerprint is None:
        reason = "no token was given" if shown is None else "the token is not valid"
        raise AdminError(
            401,
            f"{reason}; send one of the token file's as 'Authorization: Bearer TOKEN'",
            code="not_authorised",
        )
    # A token does not excuse a page: here no browser has any business, whoever lent it one.
    origin = request.headers.get("Origin")
    site = request.headers.get("Sec-Fetch-Site")
    if origin is not None or site not in (None, "none"):
        raise AdminError(
            403,
            f"pages ({origin or site!r}) may not call the admin API",
            code="origin_not_allowed",
        )
    request[FINGERPRINT] = fingerprint
    return await handler(request)


def _shown_token(request: web.Request) -> bytes | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        return None
    # aiohttp keeps bytes that are not UTF-8 as surrogates.
    return token.strip().encode("utf-8", "surrogateescape")
