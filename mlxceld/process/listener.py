"""The public API's listening sockets, bound before anything slow begins."""

from __future__ import annotations

import errno
import os
import resource
import socket
from typing import Any, Protocol

from mlxceld.process.portholder import port_holder

BACKLOG = 1024
"""Connections that may wait to be accepted: bursts of clients come faster than a loop turns."""


_RESERVED_FILES = 64
"""Files that connections of the public API leave for all else, where a quarter is not less."""


class Gate(Protocol):
    """Decides whether a listener takes a connection."""

    @property
    def settled(self) -> bool:
        """Whether connections may be accepted now."""

    def admit(self, number: int) -> bool:
        """Whether the connection with this file number may stay."""


class Listener(socket.socket):
    """A listening socket that asks its ``gate``, if it has one, about each connection."""

    gate: Gate | None = None

    def accept(self) -> tuple[socket.socket, Any]:
        """As of any socket; one that the gate turns away is closed, and counts as aborted."""
        if self.gate is None:
            return super().accept()
        if not self.gate.settled:
            raise BlockingIOError(errno.EAGAIN, "connections are being closed")
        connection, address = super().accept()
        if not self.gate.admit(connection.fileno()):
            connection.close()
            raise ConnectionAbortedError(errno.ECONNABORTED, "no file is left for it")
        return connection, address


def file_ceiling() -> int:
    """From which file number on connections would take what is reserved for all else.

    The rest is for the admin socket, the log, and files that are read anew.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 2**31
    return soft - min(_RESERVED_FILES, soft // 4)


class ListenError(Exception):
    """The address cannot be listened on.

    ``exit_code`` is 78 (EX_CONFIG) where the setting itself is wrong.
    """

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def listen(host: str, port: int) -> list[Listener]:
    """Listen on every address that ``host`` stands for, with one port for all.

    ``port`` 0 takes a free one. ``::`` takes IPv4 too. Raises ListenError, and then listens
    nowhere.
    """
    bound: list[Listener] = []
    addresses = _addresses(host, port)
    try:
        for family, address in addresses:
            wanted = (address, bound[0].getsockname()[1] if bound else port)
            try:
                bound.append(_bind(family, wanted, dual=host == "::"))
            except OSError as error:
                # A machine may name ::1 as localhost and have no IPv6.
                absent = error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
                if not (absent and len(addresses) > 1):
                    raise _explained(host, wanted[1], error) from error
        if not bound:
            raise ListenError(
                f"host {host!r}: none of its addresses is this machine's", os.EX_CONFIG
            )
    except ListenError:
        for sock in bound:
            sock.close()
        raise
    return bound


def local_url(host: str, sockets: list[Listener]) -> str:
    """Where a client on this machine finds the sockets."""
    port = sockets[0].getsockname()[1]
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - replaced
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ListenError(
            f"host {host!r}: no such address or name: {reason}", os.EX_CONFIG
        ) from error
    # IPv4 first: where port 0 is asked for, it is the one that most clients will use.
    found.sort(key=lambda item: item[0] != socket.AF_INET)
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def _bind(family: socket.AddressFamily, address: tuple[str, int], *, dual: bool) -> Listener:
    sock = Listener(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dual)
        sock.bind(address)
        # At once: until somebody listens, another process may bind the same port.
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _explained(host: str, port: int, error: OSError) -> ListenError:
    if error.errno == errno.EADDRINUSE:
        holder = port_holder(port) or "another process"
        return ListenError(
            f"port {port} on {host} is in use by {holder}: stop it, or give another --port", 1
        )
    if error.errno == errno.EACCES:
        return ListenError(f"port {port} on {host}: this user may not listen there", os.EX_CONFIG)
    if error.errno == errno.EADDRNOTAVAIL:
        return ListenError(f"host {host!r} is not an address of this machine", os.EX_CONFIG)
    return ListenError(f"cannot listen on {host} port {port}: {error.strerror}", 1)
