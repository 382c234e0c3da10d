"""HTTP over a Unix socket for requests, which has no transport for it."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from requests.adapters import HTTPAdapter
from requests.models import PreparedRequest
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from mlxceld.config.peer import peer_uid


class ForeignPeerError(OSError):
    """The socket is served by another user: whoever that is must not be told anything."""

    def __init__(self, uid: int) -> None:
        super().__init__(errno.EPERM, f"it is served by the user {uid}")
        self.uid = uid


class _Connection(HTTPConnection):
    """A connection whose address is a path; the host is only for the request's header."""

    socket_path = ""
    trusted: frozenset[int] | None = None

    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        timeout = self.timeout
        sock.settimeout(timeout if isinstance(timeout, int | float) else None)
        try:
            sock.connect(self.socket_path)
            uid = peer_uid(sock)
            if self.trusted is not None and uid is not None and uid not in self.trusted:
                raise ForeignPeerError(uid)
        except TimeoutError as error:
            sock.close()
            raise ConnectTimeoutError(
                self, f"{self.socket_path} did not accept within {timeout} s"
            ) from error
        except OSError as error:
            sock.close()
            if error.errno is None:  # Python's own: the path does not fit a socket's address
                error = OSError(errno.ENAMETOOLONG, "the path is too long for a socket")
            raise NewConnectionError(self, f"{self.socket_path}: {error.strerror}") from error
        self.sock = sock


class _Pool(HTTPConnectionPool):
    def __init__(self, path: Path, trusted: frozenset[int] | None) -> None:
        super().__init__("localhost", maxsize=1)
        bound = {"socket_path": os.fspath(path), "trusted": trusted}
        self.ConnectionCls = type("_BoundConnection", (_Connection,), bound)


class UnixSocketAdapter(HTTPAdapter):
    """Sends every request that is mounted on it to one Unix socket.

    ``trusted`` are the user ids that may serve it; None trusts everyone.
    """

    def __init__(self, path: Path, trusted: frozenset[int] | None = None) -> None:
        self._pool = _Pool(path, trusted)
        super().__init__()

    def get_connection_with_tls_context(
        self,
        request: PreparedRequest,
        verify: bool | str | None,
        proxies: Mapping[str, str] | None = None,
        cert: Any = None,
    ) -> HTTPConnectionPool:
        """The one pool there is; neither TLS nor proxies apply to a socket."""
        return self._pool

    def request_url(self, request: PreparedRequest, proxies: Mapping[str, str] | None) -> str:
        """The path and query alone, as to any server that is not a proxy."""
        return request.path_url

    def close(self) -> None:
        """Close the pooled connection too."""
        self._pool.close()
        super().close()
