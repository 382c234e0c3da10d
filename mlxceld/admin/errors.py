"""The one shape in which the admin API says no."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

_CODES = {
    400: "invalid_request",
    401: "not_authorised",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "body_too_large",
    415: "unsupported_media_type",
    422: "invalid_config",
    429: "queue_full",
    501: "not_implemented",
    503: "not_ready",
    504: "timed_out",
}


class AdminError(Exception):
    """A refusal with its HTTP status; ``details`` are plain values for programs."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, **details: object
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code or code_of(status)
        self.details = details


def code_of(status: int) -> str:
    """The error code that goes with an HTTP status where nothing more exact is known."""
    return _CODES.get(status, "internal_error" if status >= 500 else "invalid_request")


def error_response(
    status: int,
    message: str,
    *,
    code: str | None = None,
    details: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> web.Response:
    """``{"error": {"code", "message", "details"}}`` with a status."""
    body = {"code": code or code_of(status), "message": message, "details": dict(details or {})}
    return web.json_response({"error": body}, status=status, headers=headers)
