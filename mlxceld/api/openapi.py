"""``GET /openapi.json``: the public API described, from the models that validate it."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from pydantic import BaseModel

from mlxceld import __version__
from mlxceld.api.openai.schemas import ChatRequest, CompletionRequest
from mlxceld.api.responses.schemas import CountRequest, ResponsesRequest
from mlxceld.api.tokenize import DetokenizeRequest, TokenizeRequest
from mlxceld.web.openapi import Operation, document

PATH = "/openapi.json"

REASONS = {
    400: "A field is wrong; `param` names it.",
    401: "No valid API key, where keys are set.",
    403: "A foreign Host, or a page of an origin that is not allowed.",
    404: "There is no such thing.",
    413: "The body is larger than `max_body`.",
    429: "The queue is full; `Retry-After` says when to come back.",
    499: "The request was cancelled through the admin API.",
    500: "A fault; the log has it.",
    503: "The model is loading, or the daemon is stopping.",
    504: "It took longer than `request_timeout`.",
}

_ANY = (400, 401, 403, 500)
_WORK = (400, 401, 403, 404, 413, 429, 499, 500, 503, 504)
_TEXT = (400, 401, 403, 413, 500, 503)


class Problem(BaseModel):
    """What went wrong; ``param`` is the path of the field."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(BaseModel):
    """How every refusal looks."""

    error: Problem


BODIES: dict[str, tuple[Any, str]] = {
    "/v1/chat/completions": (ChatRequest, "Answer a conversation."),
    "/v1/completions": (CompletionRequest, "Go on with a text."),
    "/v1/responses": (ResponsesRequest, "Answer items."),
    "/v1/responses/input_tokens": (CountRequest, "How many tokens a request is as a prompt."),
    "/tokenize": (TokenizeRequest, "The token ids of a text."),
    "/detokenize": (DetokenizeRequest, "The text of token ids."),
}
"""What each POST takes; a route without a line here is described as taking any object."""

_SUMMARIES = {
    "/v1/models": "The models that answer.",
    "/v1/models/{id}": "One of them.",
    "/v1/responses/{id}": "A stored response.",
    "/v1/responses/{id}/input_items": "The items that it answered.",
    "/v1/cache/stats": "Every counter of the prompt cache, flat.",
    "/metrics": "Prometheus metrics.",
    "/livez": "Whether the process is alive.",
    "/readyz": "Whether requests are answered.",
    "/health": "As readyz, with more of it.",
    PATH: "This document.",
}

_WHOLE = ("/count_tokens", "/input_tokens", "/cancel")
"""How routes end that take a body and never stream."""

_OPEN = ("/livez", "/readyz", "/health")


def operations(app: web.Application) -> list[Operation]:
    """Every route that an application has."""
    found = []
    for route in app.router.routes():
        if route.resource is None or route.method in ("HEAD", "OPTIONS", "*"):
            continue
        found.append(_operation(route.method, route.resource.canonical))
    return found


def describe(app: web.Application) -> dict[str, Any]:
    """The document of the public API."""
    return document(
        "mlxceld",
        __version__,
        "A language model over HTTP, in the shapes that its clients know. Unknown fields of a body"
        " are ignored.",
        operations(app),
        error=ErrorEnvelope,
        reasons=REASONS,
    )


async def get_openapi(request: web.Request) -> web.Response:
    """The document, made when it is first asked for."""
    app = request.app
    if (made := app[DOCUMENT].get("made")) is None:
        made = app[DOCUMENT]["made"] = describe(app)
    return web.json_response(made)


DOCUMENT: web.AppKey[dict[str, Any]] = web.AppKey("openapi_document", dict)


def _operation(method: str, path: str) -> Operation:
    if method == "GET":
        return Operation(
            method,
            path,
            _SUMMARIES.get(path, path),
            errors=(503,) if path in _OPEN else (*_ANY, *((404,) if "{" in path else ()), 503),
            media=("text/plain", "application/openmetrics-text")
            if path == "/metrics"
            else ("application/json",),
            open=path in _OPEN,
        )
    body, summary = BODIES.get(path, (dict[str, Any], path))
    streams = path.startswith("/v1/") and not path.endswith(_WHOLE)
    return Operation(
        method,
        path,
        summary,
        body=body,
        media=("application/json", "text/event-stream") if streams else ("application/json",),
        errors=_WORK if streams else _TEXT,
    )
