"""``GET /v1/models`` and ``GET /v1/models/{id}``, and which model names are answered."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from mlxceld.api.context import CONTEXT, ApiContext
from mlxceld.api.errors import ApiError


async def get_models(request: web.Request) -> web.Response:
    """The loaded model and the names it answers to besides."""
    context = request.app[CONTEXT]
    data = [_entry(context, name) for name in model_names(context)]
    return web.json_response(
        {
            "object": "list",
            "data": data,
            "has_more": False,
            "first_id": data[0]["id"],
            "last_id": data[-1]["id"],
        }
    )


async def get_model(request: web.Request) -> web.Response:
    """One of them."""
    context = request.app[CONTEXT]
    name = request.match_info["id"]
    names = model_names(context)
    if name not in names:
        raise unknown_model(name, names)
    return web.json_response(_entry(context, name))


def model_names(context: ApiContext) -> list[str]:
    """The loaded model's id and its aliases; raises a 503 ApiError until one is loaded."""
    own = context.model().id
    return [own, *(alias for alias in context.settings.alias if alias != own)]


def answering_model(context: ApiContext, asked: str | None) -> str:
    """The id of the model that answers; raises a 404 ApiError under strict_model.

    Clients often have a model's name built in, so any name will do unless the settings say else.
    """
    names = model_names(context)
    if context.settings.strict_model and asked is not None and asked not in names:
        raise unknown_model(asked, names)
    return names[0]


def unknown_model(name: str, names: list[str]) -> ApiError:
    """The 404 that tells the valid names."""
    shown = name if len(name) <= 100 else name[:99] + "…"
    return ApiError(
        404,
        f"the model {shown!r} is not served here; valid ids are: {', '.join(names)}",
        param="model",
        code="model_not_found",
    )


def _entry(context: ApiContext, name: str) -> dict[str, Any]:
    """A model as OpenAI's clients read it, and besides as Anthropic's do.

    The context's length has a name of its own in each family of clients.
    """
    model = context.model()
    loaded = datetime.fromtimestamp(int(model.loaded_at), UTC)
    return {
        "id": name,
        "object": "model",
        "created": int(model.loaded_at),
        "owned_by": "mlxceld",
        "root": model.id,
        "context_length": model.context_length,
        "max_model_len": model.context_length,
        "max_context_length": model.context_length,
        "type": "model",
        "display_name": name,
        "created_at": loaded.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.context_length,
        "max_tokens": model.context_length,
    }
