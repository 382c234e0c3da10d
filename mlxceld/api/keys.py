"""The API keys that callers may show."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEY = re.compile(r"[!-~]+")


class KeyFileError(ValueError):
    """The file of API keys cannot be used; the text names the file and the line, never a key."""


class ApiKeys:
    """Names and keys from a file of ``name: key`` lines, ``#`` beginning a comment line.

    Without a file no key is needed. Several keys hold at once, so that one can replace another
    without a gap. Keys are kept as digests and compared in constant time.
    """

    def __init__(self, file: Path | None = None) -> None:
        """Read ``file``; raises KeyFileError."""
        self._file = file
        self._digests: Mapping[str, bytes] = MappingProxyType({})
        if file is not None:
            self._digests = _read(file)

    @classmethod
    def none(cls) -> Self:
        """No keys: every caller is let in."""
        return cls()

    @property
    def required(self) -> bool:
        """Whether callers have to show a key."""
        return self._file is not None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the valid keys, in the file's order."""
        return tuple(self._digests)

    @property
    def file(self) -> Path | None:
        """Where the keys are from."""
        return self._file

    def take(self, other: ApiKeys) -> None:
        """Let the keys of another reading of the file be the valid ones."""
        self._digests = other._digests

    def reload(self) -> None:
        """Read the file again; on KeyFileError the keys stay as they were."""
        if self._file is not None:
            self._digests = _read(self._file)

    def name_of(self, key: bytes) -> str | None:
        """The name of a valid key, None for any other."""
        digest = hashlib.sha256(key).digest()
        found = None
        # Every key is compared, however early one matches, so that time tells nothing.
        for name, known in self._digests.items():
            if hmac.compare_digest(known, digest):
                found = name
        return found


def _read(file: Path) -> Mapping[str, bytes]:
    try:
        text = file.read_text(encoding="utf-8")
        mode = file.stat().st_mode
    except OSError as error:
        raise KeyFileError(f"{file}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise KeyFileError(f"{file}: is not UTF-8 text") from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        log.warning("%s: others may read or write the API keys; chmod 600 it", file)
    digests: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"{file}:{number}"
        name, colon, key = (part.strip() for part in line.partition(":"))
        if not colon or not key:
            raise KeyFileError(f"{where}: expected 'name: key'")
        if not _NAME.fullmatch(name):
            raise KeyFileError(
                f"{where}: the name {name!r} may hold letters, digits and . _ - only, at most 64"
            )
        if not _KEY.fullmatch(key):
            raise KeyFileError(
                f"{where}: the key of {name!r} must be printable ASCII without spaces:"
                " no other can be sent in a header"
            )
        if name in digests:
            raise KeyFileError(f"{where}: the name {name!r} is there twice")
        digest = hashlib.sha256(key.encode("ascii")).digest()
        if digest in digests.values():
            raise KeyFileError(f"{where}: the key of {name!r} is another name's too")
        digests[name] = digest
    if not digests:
        raise KeyFileError(f"{file}: holds no key; expected lines of 'name: key'")
    return MappingProxyType(digests)
