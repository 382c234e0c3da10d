"""The one form of a conversation request that all dialects bring theirs into."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mlxceld.api.allowed_calls import AllowedCalls
from mlxceld.api.context import ApiContext
from mlxceld.api.errors import invalid
from mlxceld.api.harmony import HarmonyReader
from mlxceld.api.opened import is_answering, opened_message, opens_reasoning
from mlxceld.api.parts import Answer
from mlxceld.api.reader import AnswerReader, MarkedReader, Reading
from mlxceld.api.text_bounds import check_fits
from mlxceld.api.time_limit import within_time
from mlxceld.engine.request import Constraint
from mlxceld.models.boundaries import Boundary, common_prefix
from mlxceld.models.calls import HERMES
from mlxceld.models.continuation import Continuation
from mlxceld.models.errors import ChatTemplateError
from mlxceld.models.fitting.tool_fields import without_nulls
from mlxceld.models.grammar import GrammarError, JsonGrammar
from mlxceld.models.reasoning import ReasoningRequest, reasoning_kwargs
from mlxceld.models.text import RenderedPrompt, TextCodec
from mlxceld.models.text_limit import conversation_texts
from mlxceld.models.volatile import drop_volatile_head

trace_log = logging.getLogger("mlxceld.apc")

_COUNTED_CONTEXTS = 8
"""How many contexts' worth of text is counted at most: a client asks how far it is over."""

_CALL_ID = "call00001"
"""Stands for the id of a call where a reply is only read to render it again."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A conversation to be answered, in the shapes of chat completions.

    ``tool_choice`` is None, "none", "auto", "required" or an object that names a function;
    ``allowed`` names the only tools that may be called, None for all.
    ``reasoning`` is what the request says of thinking; ``template_kwargs`` win over it.
    ``schema`` is the JSON schema that the answer has to fit and ``schema_param`` the field it came
    in. ``marks`` are numbers of messages after which the caller wants the prompt kept. The other
    ``_param`` fields are what errors name.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: object = None
    allowed: frozenset[str] | None = None
    parallel: bool = True
    template_kwargs: Mapping[str, Any] | None = None
    reasoning: ReasoningRequest | None = None
    generation_prompt: bool = True
    continued: bool = False
    schema: Mapping[str, Any] | None = None
    schema_param: str = "response_format"
    messages_param: str = "messages"
    marks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A turn made ready: its prompt, how it was rendered, and how its answers are read.

    ``marked_tokens`` is how many tokens of the prompt lie before the last mark.
    ``continuation`` tells what the next turn will begin with.
    """

    prompt: RenderedPrompt
    signature: str
    reading: Reading
    constraint: Callable[[], Constraint] | None = None
    shown_tokens: frozenset[int] = field(default_factory=frozenset)
    marked_tokens: int = 0
    continuation: Continuation | None = None
    allowed: frozenset[str] | None = None

    def reader(self, new_id: Callable[[], str]) -> AnswerReader:
        """A reader for one answer; ``new_id`` makes ids of calls."""
        return _reader(self.reading, self.allowed, new_id)


def _reader(
    reading: Reading, allowed: frozenset[str] | None, new_id: Callable[[], str]
) -> AnswerReader:
    kind = HarmonyReader if reading.harmony else MarkedReader
    reader: AnswerReader = kind(reading, new_id)
    return reader if allowed is None else AllowedCalls(reader, allowed)


def _reply(
    reading: Reading,
    allowed: frozenset[str] | None,
    messages: Sequence[Mapping[str, Any]],
    text: str,
) -> dict[str, Any]:
    """The reply as the client will send it back, as far as can be told.

    With what was thought only where the client did so before.
    """
    # All of the reply is read, with what it goes on with.
    reader = _reader(replace(reading, begun=False), allowed, lambda: _CALL_ID)
    answer = Answer.of([*reader.push(text), *reader.finish()])
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.reasoning and any(one.get("reasoning_content") for one in messages):
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.calls
        ]
    return message


async def prepare(context: ApiContext, turn: Turn, *, only_count: bool = False) -> Prepared:
    """Render a turn and compile what its answer has to fit; raises ApiError.

    A prompt that is sure not to fit the context is refused before it is rendered; where it is
    ``only_count``-ed, one of several times that length.
    """
    codec = context.text()
    if context.settings.volatile_heads:
        messages, dropped = drop_volatile_head(turn.messages)
        if dropped is not None:
            turn = replace(turn, messages=messages)
            if context.engine.snapshot.trace_enabled:
                trace_log.info("apc_event=volatile_head line=%s dropped=true", dropped)
    arguments = reasoning_kwargs(turn.reasoning, codec.template_variables, turn.template_kwargs)
    turn = replace(turn, template_kwargs=arguments or None)
    keeps_snapshots = context.keeps_snapshots

    def work() -> Prepared:
        return _prepare(codec, turn, with_boundaries=keeps_snapshots)

    texts = list(conversation_texts(turn.messages, turn.tools))
    contexts = _COUNTED_CONTEXTS if only_count else 1
    check_fits(context, texts, turn.messages_param, messages=len(turn.messages), contexts=contexts)
    try:
        return await within_time(context, work, size=sum(map(len, texts)))
    except ChatTemplateError as error:
        about_kwargs = str(error).startswith("chat_template_kwargs")
        param = "chat_template_kwargs" if about_kwargs else turn.messages_param
        raise invalid(param, str(error), code="chat_template_error") from None


def _prepare(codec: TextCodec, turn: Turn, *, with_boundaries: bool) -> Prepared:
    # A model that may not call is not told of tools; then it does not try.
    tools = None if turn.tool_choice == "none" else turn.tools or None
    prompt = codec.render_chat(
        turn.messages,
        tools=tools,
        template_kwargs=turn.template_kwargs,
        add_generation_prompt=turn.generation_prompt,
        continue_final_message=turn.continued,
        with_boundaries=with_boundaries,
    )
    # "auto" is what holds where nothing is said.
    choice = None if turn.tool_choice == "auto" else turn.tool_choice
    signature = codec.template_signature(
        tools=tools, tool_choice=choice, template_kwargs=turn.template_kwargs
    )
    marked = 0
    if turn.marks:
        marks = _marked(codec, turn, tools, prompt.tokens)
        marked = max((mark.tokens for mark in marks), default=0)
        known = {mark.tokens for mark in prompt.boundaries}
        added = [mark for mark in marks if mark.tokens not in known]
        both = sorted((*prompt.boundaries, *added), key=lambda mark: mark.tokens)
        prompt = replace(prompt, boundaries=tuple(both))
    form = codec.output_format
    content = turn.messages[-1].get("content") if turn.continued and turn.messages else None
    in_reasoning = form.thinking is not None and opens_reasoning(
        prompt.text, content, form.thinking
    )
    opened = opened_message(codec, prompt.tokens) if form.harmony else ""
    forced = bool(tools) and (turn.tool_choice == "required" or isinstance(turn.tool_choice, dict))
    calls = None
    if tools:
        calls = (form.calls or HERMES) if codec.renders_tools or form.harmony else HERMES
    reading = Reading(
        thinking=form.thinking,
        calls=calls,
        tools=tools or (),
        harmony=form.harmony,
        forced=forced,
        in_reasoning=in_reasoning,
        begun=isinstance(content, str) and bool(content.strip()),
        opened=opened,
        parallel=turn.parallel,
    )
    channels = form.harmony and not is_answering(opened)
    opens = form.answer_opens if in_reasoning or channels else ()
    constraint = None
    if forced and tools:
        if form.harmony:
            raise invalid(
                "tool_choice",
                "tool_choice forces a call, which this model's channel format does not allow;"
                ' expected "auto" or "none"',
            )
        grammar = _compiled(codec, _call_schema(tools, turn.tool_choice, turn.allowed), "tools")
        constraint = lambda: grammar.constraint(opens)  # noqa: E731
    elif turn.schema is not None:
        answer = _compiled(codec, turn.schema, turn.schema_param)
        constraint = lambda: answer.constraint(opens)  # noqa: E731
    continuation = Continuation(
        codec,
        prompt,
        turn.messages,
        tools=tools,
        template_kwargs=turn.template_kwargs,
        continues=turn.continued,
        read_reply=lambda text: _reply(reading, turn.allowed, turn.messages, text),
    )
    return Prepared(
        prompt,
        signature,
        reading,
        constraint,
        form.markers,
        marked,
        continuation,
        turn.allowed,
    )


def _compiled(codec: TextCodec, schema: Mapping[str, Any], param: str) -> JsonGrammar:
    try:
        return codec.grammar(schema)
    except GrammarError as error:
        raise invalid(
            param,
            f"{param} has a schema that cannot be enforced: {error}",
            code="invalid_json_schema",
        ) from None


def _call_schema(
    tools: Sequence[Mapping[str, Any]], choice: object, allowed: frozenset[str] | None
) -> dict[str, Any]:
    """One call as ``{"name", "arguments"}`` of any tool that may be called, or of the named one."""
    named = choice["function"]["name"] if isinstance(choice, dict) else None
    definitions: dict[str, Any] = {}
    forms = []
    for number, tool in enumerate(tools):
        function = without_nulls(tool)["function"]
        if named not in (None, function["name"]):
            continue
        if allowed is not None and function["name"] not in allowed:
            continue
        key = f"tool{number}"
        parameters = {"type": "object", **(function.get("parameters") or {})}
        parameters.setdefault("additionalProperties", False)
        definitions[key] = _moved(parameters, f"#/$defs/{key}")
        forms.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": function["name"]},
                    "arguments": {"$ref": f"#/$defs/{key}"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    body = forms[0] if len(forms) == 1 else {"anyOf": forms}
    return {**body, "$defs": definitions}


def _moved(schema: Any, root: str) -> Any:
    """A schema whose references hold when it stands at ``root`` of another one."""
    if isinstance(schema, list):
        return [_moved(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, root) for key, value in schema.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = root + reference[1:]
    return moved


def _marked(
    codec: TextCodec,
    turn: Turn,
    tools: Sequence[Mapping[str, Any]] | None,
    tokens: Sequence[int],
) -> list[Boundary]:
    """The prefixes of the prompt that end with a marked message, found by rendering up to it."""
    found: dict[int, Boundary] = {}
    for mark in sorted(set(turn.marks)):
        try:
            part = codec.render_chat(
                turn.messages[: mark + 1],
                tools=tools,
                template_kwargs=turn.template_kwargs,
                add_generation_prompt=False,
            )
        except ChatTemplateError:
            # Some templates want a turn of the user: that mark is then the head, found otherwise.
            continue
        count = common_prefix(tokens, part.tokens)
        role = turn.messages[mark].get("role")
        kind = "head" if role in ("system", "developer") else "boundary"
        if 0 < count < len(tokens):
            found[count] = Boundary(count, "head" if kind == "head" else "boundary")
    return list(found.values())
