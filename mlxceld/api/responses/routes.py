"""``POST /v1/responses`` and ``POST /v1/responses/input_tokens``."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from mlxceld.api.body import read_object
from mlxceld.api.context import CONTEXT
from mlxceld.api.generation import gather, plan_of, start
from mlxceld.api.notes import Notes, tell
from mlxceld.api.openai.models import answering_model
from mlxceld.api.openai.params import sampling_params
from mlxceld.api.openai.schemas import GenerationFields
from mlxceld.api.openai.sse import stream_events
from mlxceld.api.prepare import prepare
from mlxceld.api.responses.body import response_finished, response_head
from mlxceld.api.responses.events import ResponseEvents
from mlxceld.api.responses.fields import SAMPLING, check_fields
from mlxceld.api.responses.input import input_of
from mlxceld.api.responses.output import OutputItems
from mlxceld.api.responses.schemas import CountRequest, ResponsesRequest
from mlxceld.api.responses.store import StoredResponse
from mlxceld.api.responses.stored import STORE
from mlxceld.api.validation import validate
from mlxceld.engine.request import ANONYMOUS_SESSION, SamplingParams


async def post_responses(request: web.Request) -> web.StreamResponse:
    """Answer an input, or what continues a stored response."""
    context, store = request.app[CONTEXT], request.app[STORE]
    body = await read_object(request)
    notes = Notes()
    check_fields(body, notes)
    fields = validate(ResponsesRequest, body)
    model = answering_model(context, fields.model)
    given = input_of(fields, fields.input, store, notes)
    sampling = _sampling(fields, body)
    prepared = await prepare(context, given.conversation)
    response_id = f"resp_{context.ids()}"
    keep = fields.store is not False
    previous = given.previous
    chain = previous.session if previous else (response_id if keep else ANONYMOUS_SESSION)
    session = fields.prompt_cache_key or fields.user or chain
    streams = start(
        request,
        plan_of(
            prepared,
            endpoint="responses",
            sampling=sampling,
            session=session,
            stream=bool(fields.stream),
            prompt_param="input",
        ),
    )
    items = OutputItems(
        context.ids,
        given.tools,
        logprobs=fields.logprobs is not None,
        carry_reasoning=fields.carries_reasoning,
    )

    def ended(response: dict[str, Any]) -> None:
        if keep:
            kept = [
                _with_id(item, f"item_{response_id}_{index}")
                for index, item in enumerate([*given.items, *items.items])
            ]
            store.put(response_id, StoredResponse(response, kept, session))

    head = response_head(
        fields,
        body,
        tell(request, notes),
        response_id=response_id,
        model=model,
        created_at=int(context.wall()),
    )
    reader = prepared.reader(lambda: f"call_{context.ids()}")
    if fields.stream:
        return await stream_events(request, streams, ResponseEvents(head, reader, items, ended), 1)
    choices, usage = await gather(context, streams, 1)
    items.add([*reader.push(choices[0].text, choices[0].logprobs), *reader.finish()])
    items.ensure_text()
    response = response_finished(head, items, choices[0].reason, usage)
    ended(response)
    return web.json_response(response)


async def post_input_tokens(request: web.Request) -> web.Response:
    """How many tokens a request is as a prompt."""
    context = request.app[CONTEXT]
    body = await read_object(request)
    notes = Notes()
    check_fields(body, notes)
    fields = validate(CountRequest, body)
    answering_model(context, fields.model)
    given = input_of(fields, fields.input or [], request.app[STORE], notes)
    prepared = await prepare(context, given.conversation, only_count=True)
    tell(request, notes)
    count = len(prepared.prompt.tokens)
    return web.json_response({"object": "response.input_tokens", "input_tokens": count})


def _sampling(fields: ResponsesRequest, body: dict[str, Any]) -> list[SamplingParams]:
    given = {name: body[name] for name in SAMPLING if name in body}
    return sampling_params(
        validate(GenerationFields, given),
        logprobs=fields.logprobs,
        default_max_tokens=fields.max_output_tokens,
    )


def _with_id(item: dict[str, Any], made: str) -> dict[str, Any]:
    return item if isinstance(item.get("id"), str) else {**item, "id": made}
