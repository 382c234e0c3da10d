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


class _Connection(HTTPConnection):
    """A connection whose address is a path; the host is only for the request's header."""

    socket_path = ""

    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        timeout = self.timeout
        sock.settimeout(timeout if isinstance(timeout, int | float) else None)
        try:
            sock.connect(self.socket_path)
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
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", maxsize=1)
        connection = type("_BoundConnection", (_Connection,), {"socket_path": os.fspath(path)})
        self.ConnectionCls = connection


class UnixSocketAdapter(HTTPAdapter):
    """Sends every request that is mounted on it to one Unix socket."""

    def __init__(self, path: Path) -> None:
        self._pool = _Pool(path)
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
