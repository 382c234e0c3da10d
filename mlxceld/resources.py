"""What a daemon takes hold of before it serves: keys, lock and sockets."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from dataclasses import dataclass
from socket import socket

from mlxceld.admin.socket import AdminSocket, AdminSocketError
from mlxceld.api.hosts import is_loopback
from mlxceld.api.keys import ApiKeys, KeyFileError
from mlxceld.config import Settings
from mlxceld.config.paths import admin_socket
from mlxceld.process.listener import ListenError, listen, local_url
from mlxceld.process.pidfile import AlreadyRunningError, StateLock

log = logging.getLogger("mlxceld.daemon")


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
    sockets: list[socket]
    admin: AdminSocket
    url: str

    def release(self) -> None:
        """Let everything go, the lock last."""
        self.admin.close()
        for sock in self.sockets:
            sock.close()
        self.lock.release()


def acquire(settings: Settings) -> Resources:
    """Check what can be checked and take what one daemon alone may have.

    Raises StartupError, and then holds nothing.
    """
    if settings.model is None:
        from mlxceld.models.locate import WHAT_CAN_BE_GIVEN

        raise StartupError(f"no model given; give --model {WHAT_CAN_BE_GIVEN}", os.EX_CONFIG)
    if settings.admin.listen is not None:
        raise StartupError(
            f"admin.listen {settings.admin.listen!r}: this version serves the admin API on its"
            " Unix socket only; leave the setting out",
            os.EX_CONFIG,
        )
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
            admin = AdminSocket(admin_socket(settings))
            admin.bind()
        except AlreadyRunningError as error:
            raise StartupError(str(error)) from error
        except ListenError as error:
            raise StartupError(str(error), error.exit_code) from error
        except AdminSocketError as error:
            raise StartupError(f"admin.socket: {error}") from error
        except OSError as error:
            raise StartupError(
                f"state_dir {settings.state_dir}: cannot be used: {error.strerror or error}",
                os.EX_CONFIG,
            ) from error
        undo.pop_all()
    url = local_url(settings.host, sockets)
    lock.publish_address(url)
    return Resources(keys, lock, sockets, admin, url)


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
