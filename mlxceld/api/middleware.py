"""Around every public request: its id, every failure in the one shape, who may call."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web

from mlxceld.api.body import LARGE
from mlxceld.api.context import CLIENT, CONTEXT, REQUEST_ID
from mlxceld.api.errors import ANTHROPIC, ApiError, dialect_of, from_engine, internal_error
from mlxceld.api.notes import HEADER, NOTES, header_value
from mlxceld.api.refusals import REFUSALS
from mlxceld.api.time_limit import note_arrival
from mlxceld.engine.errors import EngineError
from mlxceld.web.hosts import HostGuard

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

OPEN_ROUTES = frozenset({"/livez", "/readyz", "/health"})
"""The routes that need no key."""

_ID_HEADER = "X-Request-Id"
_ID = re.compile(r"[!-~]{1,128}")

GUARD: web.AppKey[HostGuard] = web.AppKey("host_guard", HostGuard)

log = logging.getLogger(__name__)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Mark a response, streamed or not, with the request's id and what CORS needs.

    This is a signal handler and no middleware, since a stream's headers have left before its
    handler returns.
    """
    if REQUEST_ID in request:
        response.headers[_ID_HEADER] = request[REQUEST_ID]
        if dialect_of(request) == ANTHROPIC:
            response.headers["request-id"] = request[REQUEST_ID]
    if NOTES in request:
        response.headers[HEADER] = header_value(request[NOTES])
    response.headers["Server"] = "mlxceld"
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers.update(request.app[GUARD].cors_headers(request.headers.get("Origin")))


@web.middleware
async def request_ids(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Take the caller's request id, or give one; the request's time runs from here."""
    given = request.headers.get(_ID_HEADER, "")
    context = request.app[CONTEXT]
    request[REQUEST_ID] = given if _ID.fullmatch(given) else context.ids()
    note_arrival(context)
    try:
        return await handler(request)
    finally:
        if LARGE in request:
            context.lanes.trim_later()


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every failure in the route's envelope; what nobody foresaw is logged."""
    try:
        return await handler(request)
    except Exception as raised:
        error = _as_api_error(request, raised)
        _let_go(raised)
    request.app[REFUSALS].record(request, error.status, error.code, param=error.param)
    return error.response(dialect_of(request))


def _let_go(error: BaseException) -> None:
    """Drop the frames that an error came through, and with them the body that they hold.

    A frame that holds its own error is a cycle: what it refers to would stay until the collector
    comes by, which may be never in an idle daemon.
    """
    chain: list[BaseException | None] = [error]
    while chain:
        one = chain.pop()
        if one is not None and one.__traceback__ is not None:
            one.__traceback__ = None
            chain += (one.__context__, one.__cause__)


def _as_api_error(request: web.Request, error: Exception) -> ApiError:
    """What an exception means over HTTP."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineError):
        return from_engine(error)
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        limit = request.app[CONTEXT].settings.max_body
        return ApiError(
            413, f"the body is larger than max_body, {limit} bytes", code="body_too_large"
        )
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = sorted(error.allowed_methods)
        return ApiError(
            405,
            f"{request.method} is not for {request.path}; use {' or '.join(allowed)}",
            code="method_not_allowed",
            headers={"Allow": ", ".join(allowed)},
        )
    if isinstance(error, web.HTTPNotFound):
        return ApiError(
            404, f"this server has no {request.method} {request.path}", code="unknown_url"
        )
    if isinstance(error, web.HTTPException):
        return ApiError(error.status, error.reason)
    log.error(
        "request %s failed: %s %s",
        request[REQUEST_ID],
        request.method,
        request.path,
        exc_info=error,
    )
    return internal_error()


@web.middleware
async def browsers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse pages that have no business here, and answer the preflight of those that have."""
    guard = request.app[GUARD]
    if (host := guard.refused_host(request.headers)) is not None:
        raise ApiError(
            403,
            f"the Host {host!r} is not served here; add its name to allowed_hosts",
            code="host_not_allowed",
        )
    if guard.is_preflight(request.method, request.headers):
        preflight = guard.preflight(request.headers, _methods(request))
        if preflight is not None:
            return web.Response(status=204, headers=preflight)
        origin: str | None = request.headers["Origin"]
    else:
        origin = guard.refused_origin(request.method, request.scheme, request.headers)
    if origin is not None:
        raise ApiError(
            403,
            f"pages of {origin!r} may not call this server; add the origin to cors_origins",
            code="origin_not_allowed",
        )
    return await handler(request)


def _methods(request: web.Request) -> Iterable[str]:
    """The methods of the route that an OPTIONS request asks about."""
    found = request.match_info.http_exception
    return found.allowed_methods if isinstance(found, web.HTTPMethodNotAllowed) else ("GET", "POST")


@web.middleware
async def authentication(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let in who shows a valid key, if keys are set."""
    keys = request.app[CONTEXT].keys
    if not keys.required or request.path in OPEN_ROUTES:
        return await handler(request)
    shown = _shown_key(request)
    name = None if shown is None else keys.name_of(shown)
    if name is None:
        reason = "no API key was given" if shown is None else "the API key is not valid"
        raise ApiError(
            401,
            f"{reason}; send one as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    request[CLIENT] = name
    return await handler(request)


def _shown_key(request: web.Request) -> bytes | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    key = token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    # aiohttp keeps bytes that are not UTF-8 as surrogates.
    return key.encode("utf-8", "surrogateescape") if key else None
