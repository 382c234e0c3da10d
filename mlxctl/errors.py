"""What can go wrong for mlxctl, with the exit code that tells it to a script."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """How mlxctl ends."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    UNAUTHORISED = 4
    CONFLICT = 5
    TIMED_OUT = 6
    INTERRUPTED = 130


class CtlError(Exception):
    """A failure to report: ``code`` is for programs, ``hint`` the next command to try."""

    def __init__(
        self,
        code: str,
        message: str,
        exit_code: ExitCode,
        *,
        details: dict[str, object] | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.exit_code = exit_code
        self.details = details or {}
        self.hint = hint
