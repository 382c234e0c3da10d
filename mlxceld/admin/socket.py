"""The admin API's Unix socket: for its owner alone, and never taken from a live daemon."""

from __future__ import annotations

import logging
import os
import socket
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from mlxceld.config.folders import FolderError, private_folder
from mlxceld.config.paths import SOCKET_PATH_LIMIT
from mlxceld.config.peer import peer_pid

_BACKLOG = 64
_PROBE_SECONDS = 2.0

log = logging.getLogger(__name__)


class AdminSocketError(Exception):
    """The socket cannot be had; the text says why and, if someone holds it, who."""


class AdminSocket:
    """A listening socket at ``path``, mode 0600, in a folder made 0700 where it was missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity: tuple[int, int] | None = None
        self._listener: socket.socket | None = None

    @property
    def listener(self) -> socket.socket:
        """The bound socket; raises RuntimeError before :meth:`bind`."""
        if self._listener is None:
            raise RuntimeError(f"{self.path} is not bound")
        return self._listener

    def bind(self) -> socket.socket:
        """Bind and listen; what a dead daemon left is replaced.

        Raises AdminSocketError when a live process holds the path, when something that is no
        socket is there, or when the folder lets others replace the socket.
        """
        self._check_length()
        self._check_folder()
        self._clear_stale()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(os.fspath(self.path))
            # Nobody can connect before it listens, and then the mode is right.
            self.path.chmod(0o600)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            found = self.path.lstat()
        except OSError as error:
            listener.close()
            raise AdminSocketError(f"cannot listen on {self.path}: {error.strerror}") from error
        self._identity = found.st_dev, found.st_ino
        self._listener = listener
        return listener

    @property
    def is_gone(self) -> bool:
        """Whether the path leads elsewhere than to this socket: it was deleted, say."""
        try:
            found = self.path.lstat()
        except OSError:
            return True
        return (found.st_dev, found.st_ino) != self._identity

    def close(self) -> None:
        """Stop listening and remove the file, unless a later daemon has put its own there."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._identity is not None:
            try:
                found = self.path.lstat()
                if (found.st_dev, found.st_ino) == self._identity:
                    self.path.unlink()
            except FileNotFoundError:
                pass
            self._identity = None

    def __enter__(self) -> Self:
        self.bind()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _check_length(self) -> None:
        length = len(os.fsencode(self.path))
        if length > SOCKET_PATH_LIMIT:
            raise AdminSocketError(
                f"the admin socket's path {self.path} has {length} bytes, and a Unix socket's"
                f" address holds {SOCKET_PATH_LIMIT}: give a shorter admin.socket"
            )

    def _check_folder(self) -> None:
        folder = self.path.parent
        try:
            mode = private_folder(folder, sticky=True)
        except FolderError as error:
            raise AdminSocketError(
                f"the admin socket's folder {folder} {error}; who can write there could replace"
                " the socket, so give an admin.socket in a folder of your own"
            ) from error
        except OSError as error:
            raise AdminSocketError(
                f"cannot use the admin socket's folder {folder}: {error.strerror}"
            ) from error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            log.warning(
                "the admin socket's folder %s has mode %04o where 0700 is enough", folder, mode
            )

    def _clear_stale(self) -> None:
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise AdminSocketError(f"{self.path} exists and is not a socket: remove or rename it")
        probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(os.fspath(self.path))
        except (ConnectionRefusedError, FileNotFoundError):
            self.path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise AdminSocketError(
                f"the admin socket {self.path} is in use, or its state cannot be told:"
                f" {error.strerror or error}"
            ) from error
        else:
            pid = peer_pid(probe)
        finally:
            probe.close()
        holder = "another process" if pid is None else f"process {pid}"
        raise AdminSocketError(f"{holder} answers on the admin socket {self.path} already")
