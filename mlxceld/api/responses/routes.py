"""``POST /v1/responses``, and ``GET`` and ``DELETE /v1/responses/{id}``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiohttp import web

from mlxceld.api.body import describe, read_object
from mlxceld.api.context import CONTEXT, ApiContext
from mlxceld.api.errors import ApiError, invalid
from mlxceld.api.generation import gather, plan_of, start
from mlxceld.api.openai.models import answering_model
from mlxceld.api.openai.sse import comment, stream_events
from mlxceld.api.reader import AnswerReader
from mlxceld.api.responses.items import messages_of
from mlxceld.api.responses.output import OutputItems, usage_object
from mlxceld.api.responses.schemas import NamedTool, ResponsesRequest
from mlxceld.api.responses.store import ResponseStore, StoredResponse
from mlxceld.api.turn import Turn, prepare
from mlxceld.api.validation import validate
from mlxceld.engine.events import PrefillProgress, TokenLogprob, Usage
from mlxceld.engine.request import ANONYMOUS_SESSION, SamplingParams
from mlxceld.models.reasoning import ReasoningRequest

STORE: web.AppKey[ResponseStore] = web.AppKey("response_store", ResponseStore)


async def post_responses(request: web.Request) -> web.StreamResponse:
    """Answer an input, or what continues a stored response."""
    context, store = request.app[CONTEXT], request.app[STORE]
    body = await read_object(request)
    fields = validate(ResponsesRequest, body)
    model = answering_model(context, fields.model)
    response_id = f"resp_{context.ids()}"
    previous = None
    if fields.previous_response_id is not None:
        previous = store.get(fields.previous_response_id)
        if previous is None:
            raise invalid(
                "previous_response_id",
                f"previous_response_id is {describe(fields.previous_response_id)}, which is not"
                " kept here; send the whole conversation as input",
                code="previous_response_not_found",
            )
    messages = [*(previous.messages if previous else ()), *messages_of(fields.input)]
    turn = _turn(fields, messages)
    prepared = await prepare(context, turn)
    keep = fields.store is not False
    chain = previous.session if previous else (response_id if keep else ANONYMOUS_SESSION)
    session = fields.prompt_cache_key or fields.user or chain
    sampling = SamplingParams(
        temperature=1.0 if fields.temperature is None else fields.temperature,
        top_p=1.0 if fields.top_p is None else fields.top_p,
        max_tokens=fields.max_output_tokens,
    )
    streams = start(
        request,
        plan_of(
            prepared,
            endpoint="responses",
            sampling=[sampling],
            session=session,
            stream=bool(fields.stream),
            prompt_param="input",
        ),
    )
    items = OutputItems(context.ids)

    def ended(response: dict[str, Any]) -> None:
        if keep:
            conversation = [*messages, items.message()]
            store.put(response_id, StoredResponse(response, conversation, session))

    head = _head(context, fields, body, response_id, model)
    reader = prepared.reader(lambda: f"call_{context.ids()}")
    if fields.stream:
        return await stream_events(request, streams, _ResponseEvents(head, reader, items, ended), 1)
    choices, usage = await gather(context, streams, 1)
    items.add([*reader.push(choices[0].text), *reader.finish()])
    items.ensure_text()
    response = _finished(head, items, choices[0].reason, usage)
    ended(response)
    return web.json_response(response)


async def get_response(request: web.Request) -> web.Response:
    """A stored response."""
    return web.json_response(dict(_stored(request).body))


async def delete_response(request: web.Request) -> web.Response:
    """Forget a stored response."""
    _stored(request)
    response_id = request.match_info["id"]
    request.app[STORE].remove(response_id)
    return web.json_response({"id": response_id, "object": "response", "deleted": True})


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


def _turn(fields: ResponsesRequest, messages: Sequence[Mapping[str, Any]]) -> Turn:
    if fields.instructions:
        messages = [{"role": "system", "content": fields.instructions}, *messages]
    tools = []
    for tool in fields.tools or ():
        function: dict[str, Any] = {"name": tool.name}
        if tool.description is not None:
            function["description"] = tool.description
        if tool.parameters is not None:
            function["parameters"] = tool.parameters
        tools.append({"type": "function", "function": function})
    return Turn(
        messages=messages,
        tools=tools or None,
        tool_choice=_choice(fields),
        parallel=fields.parallel_tool_calls is not False,
        reasoning=ReasoningRequest(fields.reasoning.effort) if fields.reasoning else None,
        schema=_schema(fields),
        schema_param="text.format.schema",
        messages_param="input",
    )


def _choice(fields: ResponsesRequest) -> object:
    choice = fields.tool_choice
    if isinstance(choice, NamedTool):
        if choice.name not in {tool.name for tool in fields.tools or ()}:
            raise invalid(
                "tool_choice",
                f"tool_choice names the function {describe(choice.name)}, which is not among tools",
            )
        return {"type": "function", "function": {"name": choice.name}}
    if choice == "required" and not fields.tools:
        raise invalid("tool_choice", 'tool_choice is "required", but there are no tools')
    return choice


def _schema(fields: ResponsesRequest) -> dict[str, Any] | None:
    form = fields.text.format if fields.text else None
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": "object"}
    if form.json_schema is None:
        raise invalid(
            "text.format.schema",
            "text.format.schema is missing",
            code="missing_required_parameter",
        )
    return form.json_schema


def _head(
    context: ApiContext,
    fields: ResponsesRequest,
    body: dict[str, Any],
    response_id: str,
    model: str,
) -> dict[str, Any]:
    """What every form of a response carries."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(context.wall()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "model": model,
        "output": [],
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": fields.previous_response_id,
        "reasoning": {"effort": None, "summary": None},
        "store": fields.store is not False,
        "temperature": 1.0 if fields.temperature is None else fields.temperature,
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": 1.0 if fields.top_p is None else fields.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": fields.user,
        "metadata": fields.metadata or {},
    }


def _finished(
    head: dict[str, Any], items: OutputItems, reason: str, usage: Usage
) -> dict[str, Any]:
    """The response when it has ended; its last item is closed."""
    cut = reason == "length"
    items.close("incomplete" if cut else "completed")
    return {
        **head,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": items.items,
        "usage": usage_object(usage),
    }


class _ResponseEvents:
    """The events of a response stream, numbered."""

    def __init__(
        self,
        head: dict[str, Any],
        reader: AnswerReader,
        items: OutputItems,
        ended: Callable[[dict[str, Any]], None],
    ) -> None:
        self._head = head
        self._reader = reader
        self._items = items
        self._ended = ended
        self._reason = "stop"
        self._number = 0

    def opening(self) -> str:
        begun = {"response": self._head}
        return self._tell([("response.created", begun), ("response.in_progress", begun)])

    def progress(self, progress: PrefillProgress) -> str:
        return ""

    def keep_alive(self, progress: PrefillProgress | None) -> str:
        return comment(progress)

    def delta(self, index: int, text: str, logprobs: Sequence[TokenLogprob]) -> str:
        return self._tell(self._items.add(self._reader.push(text)))

    def finish(self, index: int, reason: str, stop_text: str | None) -> str:
        self._reason = reason
        return self._tell([*self._items.add(self._reader.finish()), *self._items.ensure_text()])

    def closing(self, usage: Usage) -> str:
        status = "incomplete" if self._reason == "length" else "completed"
        written = self._tell(self._items.close(status))
        response = _finished(self._head, self._items, self._reason, usage)
        self._ended(response)
        return written + self._tell([(f"response.{status}", {"response": response})])

    def failure(self, error: ApiError) -> str:
        told = {"code": error.code or "server_error", "message": str(error)}
        failed = {**self._head, "status": "failed", "error": told, "output": self._items.items}
        return self._tell([("response.failed", {"response": failed})])

    def _tell(self, events: Sequence[tuple[str, dict[str, Any]]]) -> str:
        written = []
        for kind, fields in events:
            data = {"type": kind, "sequence_number": self._number, **fields}
            self._number += 1
            written.append(f"event: {kind}\ndata: {json.dumps(data)}\n\n")
        return "".join(written)
