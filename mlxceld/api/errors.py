"""How the public API says no: one error, in the envelope of the API that was called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from mlxceld.engine.errors import (
    ContextLengthError,
    EngineError,
    InvalidRequestError,
    NotReadyError,
    QueueFullError,
)
from mlxceld.engine.events import Failed, FailureKind

CLIENT_CANCELLED = 499
"""Status of a request that someone else cancelled; not a registered one, but widely understood."""

_NOT_READY_RETRY_SECONDS = 2

OPENAI = "openai"
ANTHROPIC = "anthropic"

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}

_TYPES = {429: "rate_limit_error", CLIENT_CANCELLED: "request_cancelled"}


class ApiError(Exception):
    """A refusal with its HTTP status.

    ``param`` is the path of the offending field (``messages[0].content``), ``code`` a stable name
    for programs. ``anthropic`` are fields that its ``error`` object has in Anthropic's envelope.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        anthropic: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        self.anthropic = dict(anthropic or {})

    def envelope(self, dialect: str = OPENAI) -> dict[str, Any]:
        """OpenAI's ``{"error": {"message", "type", "param", "code"}}``, or Anthropic's.

        Anthropic's ``{"type": "error", "error": {"type", "message"}}`` has no place for the
        field: its message begins with it where it does not name it.
        """
        if dialect == ANTHROPIC:
            message = str(self)
            if self.param is not None and self.param not in message:
                message = f"{self.param}: {message}"
            kind = _ANTHROPIC_TYPES.get(self.status) or (
                "invalid_request_error" if self.status < 500 else "api_error"
            )
            return {"type": "error", "error": {"type": kind, "message": message, **self.anthropic}}
        kind = _TYPES.get(self.status, "")
        if not kind:
            kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {
            "error": {
                "message": str(self),
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self, dialect: str = OPENAI) -> web.Response:
        """The error as a whole HTTP response."""
        return web.json_response(self.envelope(dialect), status=self.status, headers=self.headers)


def invalid(param: str | None, message: str, *, code: str | None = None) -> ApiError:
    """A 400 about one field."""
    return ApiError(400, message, param=param, code=code)


def refusal(status: int, message: str) -> web.Response:
    """A refusal of what did not get as far as a route."""
    code = "unsupported_expectation" if status == 417 else "bad_request"
    return ApiError(status, message, code=code if status < 500 else None).response()


def not_ready(message: str) -> ApiError:
    """A 503 that asks to come back."""
    return ApiError(
        503, message, code="not_ready", headers={"Retry-After": str(_NOT_READY_RETRY_SECONDS)}
    )


def internal_error() -> ApiError:
    """A 500 for what nobody foresaw; the caller logs it."""
    return ApiError(
        500, "the daemon failed on this request; its log has the traceback", code="internal_error"
    )


def from_engine(error: EngineError, *, prompt_param: str = "prompt") -> ApiError:
    """What the engine's refusal means over HTTP; ``prompt_param`` is the prompt's field."""
    if isinstance(error, ContextLengthError):
        return ApiError(
            400,
            str(error),
            param=prompt_param,
            code="context_length_exceeded",
            anthropic={"message": error.summary},
        )
    if isinstance(error, InvalidRequestError):
        return invalid(prompt_param if error.param == "prompt" else error.param, str(error))
    if isinstance(error, QueueFullError):
        return ApiError(
            429, str(error), code="queue_full", headers={"Retry-After": str(error.retry_after)}
        )
    if isinstance(error, NotReadyError):
        return not_ready(str(error))
    return ApiError(500, str(error), code="internal_error")


def from_failure(failed: Failed) -> ApiError:
    """What a request's end by a fault means over HTTP."""
    if failed.kind is FailureKind.SHUTDOWN:
        return ApiError(503, failed.message, code=failed.kind.value, headers={"Retry-After": "5"})
    return ApiError(500, failed.message, code=failed.kind.value)


def timed_out(seconds: float) -> ApiError:
    """The request took longer than the daemon allows; a retry would do the same again."""
    return ApiError(
        504,
        f"the request took longer than request_timeout, {seconds:g} s",
        code="timeout",
        headers={"x-should-retry": "false"},
    )


def cancelled() -> ApiError:
    """The request was cancelled through the admin API."""
    return ApiError(CLIENT_CANCELLED, "the request was cancelled", code="request_cancelled")


def dialect_of(request: web.BaseRequest) -> str:
    """Whose envelope a request's errors come in: by its route, or by the header of Anthropic's SDKs
    where a route serves both vendors'.
    """
    path = request.path
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return ANTHROPIC
    both = path == "/v1/models" or path.startswith("/v1/models/")
    return ANTHROPIC if both and "anthropic-version" in request.headers else OPENAI
