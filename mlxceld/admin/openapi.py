"""``GET /openapi.json``: the admin API described, from the models that validate it."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from pydantic import BaseModel

from mlxceld import __version__
from mlxceld.admin import entries, schemas
from mlxceld.admin.reports import ReloadReport
from mlxceld.engine.warming import Warmed
from mlxceld.prompt_cache.reports import EntryList, PinReport, VerifyCheck
from mlxceld.prompt_cache.trace import RING_EVENTS
from mlxceld.web.openapi import Operation, Parameter, document

PATH = "/openapi.json"

REASONS = {
    400: "A field or a parameter is wrong; `details.field` names it.",
    401: "Over TCP: no valid token.",
    403: "Over TCP: a foreign Host, or a page of a browser.",
    404: "There is no such thing.",
    409: "It conflicts with how things are; `details` tells how.",
    413: "The body is too large.",
    415: "The body is not `application/json`.",
    422: "The settings are not in order; nothing was changed.",
    429: "The queue is full.",
    500: "A fault; the log has it.",
    501: "This engine cannot do that.",
    503: "The engine is not ready.",
    504: "The engine did not get to it in time.",
}

_READ = (400, 401, 403, 500)
_ORDER = (400, 401, 403, 413, 415, 500, 503, 504)


class Problem(BaseModel):
    """What went wrong: a stable code, a sentence, and plain values."""

    code: str
    message: str
    details: dict[str, Any]


class Verdict(BaseModel):
    """The self-check's outcome; ``reason`` is what failed, if anything did."""

    passed: bool
    reason: str
    checks: list[VerifyCheck]
    tokens_computed: int


class ErrorBody(BaseModel):
    """How every refusal looks."""

    error: Problem


def operations(prefix: str) -> list[Operation]:
    """Every route of the admin API below ``prefix``."""
    return [
        Operation("GET", PATH, "This document.", errors=_READ),
        Operation("GET", f"{prefix}/status", "The daemon in one object.", errors=_READ),
        Operation("GET", f"{prefix}/requests", "What is in flight.", errors=_READ),
        Operation(
            "DELETE",
            f"{prefix}/requests/{{id}}",
            "Stop a request within one step.",
            errors=(*_READ, 404, 413, 415),
        ),
        Operation(
            "POST",
            f"{prefix}/drain",
            "Take no more requests; those accepted run on.",
            body=schemas.NoFields,
            errors=_ORDER,
        ),
        Operation("GET", f"{prefix}/cache/stats", "Every cache number, flat.", errors=_READ),
        Operation(
            "GET",
            f"{prefix}/cache/entries",
            "What is stored, the most recently used first; never its text.",
            answer=EntryList,
            query=(
                Parameter("store", {"enum": list(entries.STORES), "default": "all"}),
                Parameter("session", {"type": "string", "minLength": 1}, "A key or its hash."),
                Parameter(
                    "limit",
                    {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": entries.LARGEST_LIMIT,
                        "default": entries.DEFAULT_LIMIT,
                    },
                ),
            ),
            errors=(*_READ, 503, 504),
        ),
        Operation(
            "PATCH",
            f"{prefix}/cache/budget",
            "Change the live limits until the daemon restarts.",
            body=schemas.BudgetPatch,
            errors=(*_ORDER, 409),
        ),
        Operation(
            "POST",
            f"{prefix}/cache/flush",
            "Drop entries; what running requests use is freed when they end.",
            body=schemas.FlushOrder,
            errors=_ORDER,
        ),
        Operation(
            "POST",
            f"{prefix}/cache/explain",
            "Foretell what a request would reuse, and why not more; changes nothing.",
            body=schemas.ExplainOrder,
            errors=_ORDER,
        ),
        Operation(
            "GET",
            f"{prefix}/trace/stream",
            "The last events, and then those that happen while the trace is on.",
            media=("text/event-stream",),
            query=(Parameter("n", {"type": "integer", "minimum": 0, "maximum": RING_EVENTS}),),
            errors=_READ,
        ),
        Operation(
            "POST",
            f"{prefix}/cache/warm",
            "Prefill a prompt and keep it.",
            body=schemas.WarmOrder,
            answer=Warmed,
            errors=(*_ORDER, 409, 429),
            also={202: "It is being prefilled; `id` is its request's."},
        ),
        Operation(
            "DELETE",
            f"{prefix}/cache/pins/{{digest}}",
            "Leave a pinned entry to its age and use.",
            answer=PinReport,
            errors=(*_READ, 404, 413, 415, 503, 504),
        ),
        Operation(
            "POST",
            f"{prefix}/cache/verify",
            "Prove that what is adopted equals what is computed.",
            body=schemas.NoFields,
            answer=Verdict,
            errors=_ORDER,
        ),
        Operation(
            "GET",
            f"{prefix}/trace",
            "Whether the trace is logged, and its last events.",
            query=(Parameter("n", {"type": "integer", "minimum": 0, "maximum": RING_EVENTS}),),
            errors=_READ,
        ),
        Operation(
            "PUT",
            f"{prefix}/trace",
            "Switch the trace's log lines.",
            body=schemas.TraceSwitch,
            errors=_ORDER,
        ),
        Operation(
            "GET", f"{prefix}/config", "The settings in force and their sources.", errors=_READ
        ),
        Operation(
            "POST",
            f"{prefix}/config/reload",
            "Read the settings file, keys and tokens again.",
            body=schemas.NoFields,
            answer=ReloadReport,
            errors=(*_ORDER, 422, 501),
        ),
    ]


def describe(prefix: str) -> dict[str, Any]:
    """The document of the admin API."""
    return document(
        "mlxceld admin API",
        __version__,
        "Served on a Unix socket, and over loopback TCP where a token is shown.",
        operations(prefix),
        error=ErrorBody,
        reasons=REASONS,
    )


def handler(prefix: str) -> Any:
    """Answers with the document, which is made once."""
    made = describe(prefix)

    async def get_openapi(request: web.Request) -> web.Response:
        return web.json_response(made)

    return get_openapi
