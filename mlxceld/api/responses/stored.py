"""The routes of stored responses: ``/v1/responses/{id}`` and what lies below it."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from mlxceld.api.body import describe
from mlxceld.api.errors import ApiError, invalid
from mlxceld.api.responses.items import kind_of
from mlxceld.api.responses.store import ResponseStore, StoredResponse

STORE: web.AppKey[ResponseStore] = web.AppKey("response_store", ResponseStore)

PATH = "/v1/responses/{id:resp_[^/]+}"
"""Only what can be the id of a response: other paths are not taken for one."""

_PAGE, _PAGE_LIMIT = 20, 100


async def get_response(request: web.Request) -> web.Response:
    """A stored response."""
    if request.query.get("stream") == "true":
        raise invalid(
            "stream",
            "stream is true, but a stored response is only sent whole",
            code="unsupported_parameter",
        )
    return web.json_response(dict(_stored(request).body))


async def delete_response(request: web.Request) -> web.Response:
    """Forget a stored response."""
    _stored(request)
    response_id = request.match_info["id"]
    request.app[STORE].remove(response_id)
    return web.json_response({"id": response_id, "object": "response", "deleted": True})


async def post_cancel(request: web.Request) -> web.Response:
    """Refused: only a response in the background could be cancelled, and there is none."""
    _stored(request)
    raise invalid(
        "response_id",
        f"the response {describe(request.match_info['id'])} is not one in the background;"
        " only those can be cancelled",
    )


async def get_input_items(request: web.Request) -> web.Response:
    """The items that a response answers, page by page, the newest first unless asked otherwise."""
    stored = _stored(request)
    count = len(stored.items) - len(stored.body["output"])
    items = [_listed(item) for item in stored.items[:count]]
    if _query(request, "order", ("asc", "desc"), "desc") == "desc":
        items.reverse()
    if (after := request.query.get("after")) is not None:
        places = [index for index, item in enumerate(items) if item["id"] == after]
        if not places:
            raise invalid("after", f"after is {describe(after)}, which is none of the items")
        items = items[places[0] + 1 :]
    limit = _limit(request)
    page = items[:limit]
    return web.json_response(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(items) > limit,
        }
    )


def _stored(request: web.Request) -> StoredResponse:
    response_id = request.match_info["id"]
    found = request.app[STORE].get(response_id)
    if found is None:
        raise ApiError(
            404,
            f"the response {describe(response_id)} is not kept here",
            param="response_id",
            code="response_not_found",
        )
    return found


def _listed(item: dict[str, Any]) -> dict[str, Any]:
    """An item in the full form, whatever short one it was sent in."""
    kind = kind_of(item)
    listed = {**item, "type": kind}
    if kind == "message":
        content = item.get("content")
        if isinstance(content, str):
            part = "output_text" if item.get("role") == "assistant" else "input_text"
            content = [{"type": part, "text": content}]
            if part == "output_text":
                content[0]["annotations"] = []
        listed = {"status": "completed", **listed, "content": content or []}
    return listed


def _query(request: web.Request, name: str, values: tuple[str, ...], default: str) -> str:
    value = request.query.get(name, default)
    if value not in values:
        raise invalid(name, f"{name} is {describe(value)}, expected {' or '.join(values)}")
    return value


def _limit(request: web.Request) -> int:
    text = request.query.get("limit", str(_PAGE))
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _PAGE_LIMIT):
        raise invalid(
            "limit", f"limit is {describe(text)}, expected a whole number from 1 to {_PAGE_LIMIT}"
        )
    return int(text)
