"""The verdicts of a model's checks, kept on disk so that the next start need not make them again.

Plain data in one small file of the state folder. What is not to be trusted (another user's file,
one that others may write, a link, or what does not parse) counts as absent: then the checks run.
No MLX at import.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import stat
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

VERDICTS_NAME = "verdicts.json"

_FORMAT = 1
_MOST = 32
"""Models, each with its settings, whose verdicts are kept; the oldest goes first."""

_MOST_BYTES = 1 << 20


class VerdictFile:
    """Verdicts by fingerprint: a JSON object each, with ``checked_at`` in Unix seconds."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / VERDICTS_NAME

    def get(self, fingerprint: str) -> dict[str, Any] | None:
        """What was kept under a fingerprint, unchecked; None if there is nothing."""
        return self._read().get(fingerprint)

    def put(self, fingerprint: str, verdicts: dict[str, Any]) -> None:
        """Keep verdicts, in place of what was kept before; a failure is logged and no more."""
        kept = self._read()
        kept[fingerprint] = verdicts
        newest = sorted(kept, key=lambda key: _checked_at(kept[key]))[-_MOST:]
        body = json.dumps({"format": _FORMAT, "verdicts": {key: kept[key] for key in newest}})
        try:
            self._replace(body.encode())
        except OSError as error:
            log.warning("%s: cannot be written, the next start checks anew: %s", self._path, error)

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            found = json.loads(self._bytes())
            if found["format"] != _FORMAT:
                return {}
            return {
                str(key): value
                for key, value in found["verdicts"].items()
                if isinstance(value, dict)
            }
        except FileNotFoundError:
            return {}
        except Exception as error:
            log.debug("%s: not used: %s", self._path, error)
            return {}

    def _bytes(self) -> bytes:
        handle = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid():
                raise PermissionError("not a file of this user")
            if about.st_mode & 0o022 or about.st_size > _MOST_BYTES:
                raise PermissionError("others may write it, or it is too large")
            return file.read(_MOST_BYTES + 1)

    def _replace(self, body: bytes) -> None:
        target = self._path.with_name(f".{VERDICTS_NAME}.{secrets.token_hex(6)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(target, flags, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(handle)
            target.replace(self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                target.unlink()
            raise


def _checked_at(verdicts: dict[str, Any]) -> float:
    value = verdicts.get("checked_at")
    return float(value) if isinstance(value, int | float) else 0.0
