"""Around every admin request: its id, and every failure in the one shape."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Awaitable, Callable

from aiohttp import web

from mlxceld import __version__
from mlxceld.admin.body import BODY_LIMIT, WARM_LIMIT
from mlxceld.admin.context import REQUEST_ID
from mlxceld.admin.errors import AdminError, error_response

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_ID_HEADER = "X-Request-Id"
_ID = re.compile(r"[!-~]{1,128}")

log = logging.getLogger(__name__)


@web.middleware
async def request_ids(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Take the caller's request id, or give one, and answer with it."""
    given = request.headers.get(_ID_HEADER, "")
    request[REQUEST_ID] = given if _ID.fullmatch(given) else uuid.uuid4().hex
    response = await handler(request)
    response.headers[_ID_HEADER] = request[REQUEST_ID]
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Mlxceld-Version"] = __version__
    return response


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every failure as ``{"error": {...}}``; what nobody foresaw is logged."""
    try:
        return await handler(request)
    except AdminError as error:
        # The header that RFC 9110 wants of a 401.
        headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
        return error_response(
            error.status, str(error), code=error.code, details=error.details, headers=headers
        )
    except web.HTTPRequestEntityTooLarge:
        limit = WARM_LIMIT if request.path.endswith("/cache/warm") else BODY_LIMIT
        return error_response(
            413, f"the body is larger than {limit} bytes", details={"limit": limit}
        )
    except web.HTTPMethodNotAllowed as error:
        allowed = sorted(error.allowed_methods)
        return error_response(
            405,
            f"{request.method} is not for {request.path}; use {' or '.join(allowed)}",
            details={"allowed": allowed},
            headers={"Allow": ", ".join(allowed)},
        )
    except web.HTTPNotFound:
        return error_response(404, f"there is no {request.path} in the admin API")
    except web.HTTPException as error:
        return error_response(error.status, error.reason)
    except Exception:
        log.exception("admin request %s %s failed", request.method, request.path)
        return error_response(500, "the daemon failed on this request; its log has the traceback")
