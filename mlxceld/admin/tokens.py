"""The bearer tokens that open the admin API over TCP."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from pathlib import Path

SHORTEST = 16
"""Characters that a token needs at least: fewer could be tried out."""

_TOKEN = re.compile(rf"[!-~]{{{SHORTEST},}}")
_FINGERPRINT_DIGITS = 8


class TokenFileError(ValueError):
    """The file of tokens cannot be used; the text names the file and the line, never a token."""


class AdminTokens:
    """Tokens from a file, one a line, ``#`` beginning a comment line; all of them hold.

    The file must be of this user (or root) and closed to all others. Tokens are kept as digests
    and compared in constant time.
    """

    def __init__(self, file: Path) -> None:
        """Read ``file``; raises TokenFileError."""
        self.file = file
        self._digests = _read(file)

    def __len__(self) -> int:
        return len(self._digests)

    def take(self, other: AdminTokens) -> bool:
        """Let the tokens of another reading be the valid ones; whether they are others."""
        changed = self._digests != other._digests
        self._digests = other._digests
        return changed

    def fingerprint(self, token: bytes) -> str | None:
        """How a valid token is called on record; None for any other."""
        digest = hashlib.sha256(token).digest()
        found = None
        # Every token is compared, however early one matches, so that time tells nothing.
        for known in self._digests:
            if hmac.compare_digest(known, digest):
                found = known.hex()[:_FINGERPRINT_DIGITS]
        return found


def create_token_file(file: Path) -> None:
    """Write a new token of 32 random bytes to a file that nobody else can read.

    Raises FileExistsError where there is one, and other OSErrors.
    """
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as out:
        out.write(secrets.token_urlsafe(32) + "\n")


def _read(file: Path) -> tuple[bytes, ...]:
    try:
        with file.open("rb") as source:
            found = os.fstat(source.fileno())
            raw = source.read()
    except OSError as error:
        raise TokenFileError(f"{file}: cannot be read: {error.strerror or error}") from error
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        raise TokenFileError(
            f"{file}: others may use this file (mode {mode:04o}), so its tokens are not safe:"
            " chmod 600 it, and put a new token in if others have read it"
        )
    if found.st_uid not in (os.geteuid(), 0):
        raise TokenFileError(f"{file}: belongs to the user {found.st_uid}, expected your own")
    digests: list[bytes] = []
    for number, line in enumerate(raw.splitlines(), 1):
        # Any byte reads as some character here; what is not ASCII fails the test below.
        token = line.decode("latin-1").strip()
        if not token or token.startswith("#"):
            continue
        if not _TOKEN.fullmatch(token):
            raise TokenFileError(
                f"{file}:{number}: expected a token of at least {SHORTEST} characters of printable"
                " ASCII without spaces: no other can be sent in a header"
            )
        digests.append(hashlib.sha256(token.encode("ascii")).digest())
    if not digests:
        raise TokenFileError(f"{file}: holds no token; expected one a line")
    return tuple(digests)
