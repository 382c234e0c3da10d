"""What a daemon takes hold of before it serves: keys, lock and sockets."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import time
from dataclasses import dataclass

from mlxceld.admin.socket import AdminSocket, AdminSocketError
from mlxceld.admin.tokens import AdminTokens, TokenFileError, create_token_file
from mlxceld.api.keys import ApiKeys, KeyFileError
from mlxceld.config import Settings
from mlxceld.config.folders import FolderError
from mlxceld.config.kinds import split_address
from mlxceld.config.paths import admin_socket
from mlxceld.process.listener import Listener, ListenError, listen, local_url
from mlxceld.process.pidfile import AlreadyRunningError, StateLock
from mlxceld.web.hosts import is_loopback

log = logging.getLogger("mlxceld.daemon")

OPEN_FILES = 8192
"""How many files the daemon may open, where the system lets it: each connection is one."""


class StartupError(Exception):
    """The daemon cannot start; the text is one readable line."""

    def __init__(self, text: str, exit_code: int = 1) -> None:
        super().__init__(text)
        self.exit_code = exit_code


@dataclass(slots=True)
class Resources:
    """What a daemon holds from before it serves until its end."""

    keys: ApiKeys
    lock: StateLock
    sockets: list[Listener]
    admin: AdminSocket
    url: str
    admin_sockets: list[Listener]
    tokens: AdminTokens | None

    def release(self) -> None:
        """Let everything go, the lock last."""
        self.admin.close()
        for sock in (*self.sockets, *self.admin_sockets):
            sock.close()
        self.lock.release()


def acquire(settings: Settings) -> Resources:
    """Check what can be checked and take what one daemon alone may have.

    Raises StartupError, and then holds nothing.
    """
    if settings.model is None:
        from mlxceld.models.locate import WHAT_CAN_BE_GIVEN

        raise StartupError(f"no model given; give --model {WHAT_CAN_BE_GIVEN}", os.EX_CONFIG)
    tokens = _admin_tokens(settings)
    try:
        keys = ApiKeys(settings.api_keys_file)
    except KeyFileError as error:
        raise StartupError(f"api_keys_file: {error}", os.EX_CONFIG) from error
    _check_exposure(settings, keys)
    with contextlib.ExitStack() as undo:
        lock = StateLock(settings.state_dir)
        try:
            lock.acquire(started_at=time.time())
            undo.callback(lock.release)
            sockets = listen(settings.host, settings.port)
            for sock in sockets:
                undo.callback(sock.close)
            admin_sockets = _listen_for_admin(settings.admin.listen)
            for sock in admin_sockets:
                undo.callback(sock.close)
            admin = AdminSocket(admin_socket(settings))
            admin.bind()
        except AlreadyRunningError as error:
            raise StartupError(str(error)) from error
        except ListenError as error:
            raise StartupError(str(error), error.exit_code) from error
        except AdminSocketError as error:
            raise StartupError(f"admin.socket: {error}") from error
        except FolderError as error:
            raise StartupError(f"state_dir {settings.state_dir}: {error}", os.EX_CONFIG) from error
        except OSError as error:
            raise StartupError(
                f"state_dir {settings.state_dir}: cannot be used: {error.strerror or error}",
                os.EX_CONFIG,
            ) from error
        undo.pop_all()
    url = local_url(settings.host, sockets)
    lock.publish_address(url)
    return Resources(keys, lock, sockets, admin, url, admin_sockets, tokens)


def _admin_tokens(settings: Settings) -> AdminTokens | None:
    """The tokens of the admin API over TCP, None without it; a missing file is made."""
    listen_at, file = settings.admin.listen, settings.admin.token_file
    if listen_at is None:
        return None
    host, _ = split_address(listen_at)
    if not is_loopback(host.lower()):
        raise StartupError(
            f"admin.listen {listen_at!r}: expected a loopback address like 127.0.0.1:8485;"
            " from another machine use ssh -L",
            os.EX_CONFIG,
        )
    if file is None:
        raise StartupError(
            f"admin.listen {listen_at!r}: needs admin.token_file: give --admin-token-file FILE;"
            " a file that is not there yet is made, with a new token",
            os.EX_CONFIG,
        )
    try:
        if not file.exists():
            create_token_file(file)
            log.info("admin.token_file: a new token was written to %s", file)
        return AdminTokens(file)
    except TokenFileError as error:
        raise StartupError(f"admin.token_file: {error}", os.EX_CONFIG) from error
    except OSError as error:
        raise StartupError(
            f"admin.token_file {file}: cannot be made: {error.strerror or error}", os.EX_CONFIG
        ) from error


def _listen_for_admin(address: str | None) -> list[Listener]:
    if address is None:
        return []
    host, port = split_address(address)
    try:
        return listen(host, port)
    except ListenError as error:
        raise ListenError(f"admin.listen {address!r}: {error}", error.exit_code) from error


def _check_exposure(settings: Settings, keys: ApiKeys) -> None:
    """Refuse to serve everyone on the network without a key, unless that is wanted."""
    if keys.required or is_loopback(settings.host.lower()):
        return
    if not settings.insecure:
        raise StartupError(
            f"host {settings.host!r} can be reached from other machines and there are no API keys:"
            " give --api-keys-file, or --insecure if everyone may use it",
            os.EX_CONFIG,
        )
    log.warning("anyone who reaches %s may use this daemon: no API keys are set", settings.host)


def raise_file_limit() -> None:
    """Let this process open :data:`OPEN_FILES` files, or as many as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
