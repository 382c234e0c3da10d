"""From a conversation to a prompt, whether it is to be answered, warmed or explained."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mlxceld.api.call_schema import call_schema
from mlxceld.api.context import ApiContext
from mlxceld.api.conversation import Conversation
from mlxceld.api.errors import invalid
from mlxceld.api.opened import is_answering, opened_message, opens_reasoning
from mlxceld.api.reader import AnswerReader, Reading
from mlxceld.api.reading import reader_of, reading_of
from mlxceld.api.text_bounds import check_fits
from mlxceld.api.time_limit import within_time
from mlxceld.engine.request import ConstraintSpec, ContinuationSpec, ReplySpec
from mlxceld.models.boundaries import Boundary, common_prefix
from mlxceld.models.errors import ChatTemplateError
from mlxceld.models.grammar import GrammarError
from mlxceld.models.reasoning import reasoning_kwargs
from mlxceld.models.text import RenderedPrompt, TextCodec
from mlxceld.models.text_limit import conversation_texts
from mlxceld.models.volatile import drop_volatile_head

trace_log = logging.getLogger("mlxceld.apc")

_COUNTED_CONTEXTS = 8
"""How many contexts' worth of text is counted at most: a client asks how far it is over."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A conversation made ready: its prompt, how it was rendered, and how its answers are read.

    ``marked_tokens`` is how many tokens of the prompt lie before the last mark.
    ``continuation`` tells what the next conversation will begin with.
    """

    conversation: Conversation
    prompt: RenderedPrompt
    signature: str
    reading: Reading
    constraint: ConstraintSpec | None = None
    shown_tokens: frozenset[int] = field(default_factory=frozenset)
    marked_tokens: int = 0
    continuation: ContinuationSpec | None = None
    allowed: frozenset[str] | None = None

    def reader(self, new_id: Callable[[], str]) -> AnswerReader:
        """A reader for one answer; ``new_id`` makes ids of calls."""
        return reader_of(self.reading, self.allowed, new_id)


async def prepare(
    context: ApiContext, conversation: Conversation, *, only_count: bool = False
) -> Prepared:
    """Render a conversation and compile what its answer has to fit; raises ApiError.

    A prompt that is sure not to fit the context is refused before it is rendered; where it is
    ``only_count``-ed, one of several times that length.
    """
    codec = context.text()
    if context.settings.volatile_heads:
        messages, dropped = drop_volatile_head(conversation.messages)
        if dropped is not None:
            conversation = replace(conversation, messages=messages)
            if context.engine.status.trace_enabled:
                trace_log.info("apc_event=volatile_head line=%s dropped=true", dropped)
    arguments = reasoning_kwargs(
        conversation.reasoning, codec.template_variables, conversation.template_kwargs
    )
    conversation = replace(conversation, template_kwargs=arguments or None)
    keeps_snapshots = context.keeps_snapshots

    def work() -> Prepared:
        return _prepare(codec, conversation, with_boundaries=keeps_snapshots)

    texts = list(conversation_texts(conversation.messages, conversation.tools))
    contexts = _COUNTED_CONTEXTS if only_count else 1
    check_fits(
        context,
        texts,
        conversation.messages_param,
        messages=len(conversation.messages),
        contexts=contexts,
    )
    try:
        return await within_time(context, work, size=sum(map(len, texts)))
    except ChatTemplateError as error:
        about_kwargs = str(error).startswith("chat_template_kwargs")
        param = "chat_template_kwargs" if about_kwargs else conversation.messages_param
        raise invalid(param, str(error), code="chat_template_error") from None


async def common_beginning(context: ApiContext, conversation: Conversation) -> list[int]:
    """The tokens that any turn after a conversation begins with; empty if none can be rendered.

    The conversation is one that was prepared.
    """
    codec = context.text()

    def work() -> list[int]:
        return codec.next_turn(
            conversation.messages,
            tools=_told_tools(conversation),
            template_kwargs=conversation.template_kwargs,
        )

    texts = conversation_texts(conversation.messages, conversation.tools)
    return await within_time(context, work, size=sum(map(len, texts)))


def signature_of(codec: TextCodec, conversation: Conversation) -> str:
    """How a conversation is rendered, but for its messages: only equal ones share a cache."""
    # "auto" is what holds where nothing is said.
    choice = None if conversation.tool_choice == "auto" else conversation.tool_choice
    return codec.template_signature(
        tools=_told_tools(conversation),
        tool_choice=choice,
        template_kwargs=conversation.template_kwargs,
    )


def _told_tools(conversation: Conversation) -> Sequence[Mapping[str, Any]] | None:
    """A model that may not call is not told of tools; then it does not try."""
    return None if conversation.tool_choice == "none" else conversation.tools or None


def _prepare(codec: TextCodec, conversation: Conversation, *, with_boundaries: bool) -> Prepared:
    tools = _told_tools(conversation)
    prompt = codec.render_chat(
        conversation.messages,
        tools=tools,
        template_kwargs=conversation.template_kwargs,
        add_generation_prompt=conversation.generation_prompt,
        continue_final_message=conversation.continued,
        with_boundaries=with_boundaries,
    )
    marked = 0
    if conversation.marks:
        marks = _marked(codec, conversation, tools, prompt.tokens)
        marked = max((mark.tokens for mark in marks), default=0)
        known = {mark.tokens for mark in prompt.boundaries}
        added = [mark for mark in marks if mark.tokens not in known]
        both = sorted((*prompt.boundaries, *added), key=lambda mark: mark.tokens)
        prompt = replace(prompt, boundaries=tuple(both))
    form = codec.output_format
    content = (
        conversation.messages[-1].get("content")
        if conversation.continued and conversation.messages
        else None
    )
    in_reasoning = form.thinking is not None and opens_reasoning(
        prompt.text, content, form.thinking
    )
    opened = opened_message(codec, prompt.tokens) if form.harmony else ""
    forced = bool(tools) and (
        conversation.tool_choice == "required" or isinstance(conversation.tool_choice, dict)
    )
    reply = ReplySpec(
        allowed=None if conversation.allowed is None else tuple(sorted(conversation.allowed)),
        forced=forced,
        in_reasoning=in_reasoning,
        opened=opened,
        parallel=conversation.parallel,
    )
    begun = isinstance(content, str) and bool(content.strip())
    reading = reading_of(codec, reply, tools, begun=begun)
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
        schema = call_schema(tools, conversation.tool_choice, conversation.allowed)
        constraint = _compiled(codec, schema, "tools", opens)
    elif conversation.schema is not None:
        constraint = _compiled(codec, conversation.schema, conversation.schema_param, opens)
    continuation = ContinuationSpec(
        conversation.messages,
        tools,
        conversation.template_kwargs,
        prompt_tokens=len(prompt.tokens),
        repeated_tokens=prompt.repeated,
        continues=conversation.continued,
        reply=reply,
    )
    return Prepared(
        conversation,
        prompt,
        signature_of(codec, conversation),
        reading,
        constraint,
        form.markers,
        marked,
        continuation,
        conversation.allowed,
    )


def _compiled(
    codec: TextCodec, schema: Mapping[str, Any], param: str, opens: Sequence[int]
) -> ConstraintSpec:
    """The schema as the engine takes it, compiled beforehand: it is told here if it cannot be."""
    text = json.dumps(schema)
    try:
        codec.grammar(text)
    except GrammarError as error:
        raise invalid(
            param,
            f"{param} has a schema that cannot be enforced: {error}",
            code="invalid_json_schema",
        ) from None
    return ConstraintSpec(text, tuple(opens))


def _marked(
    codec: TextCodec,
    conversation: Conversation,
    tools: Sequence[Mapping[str, Any]] | None,
    tokens: Sequence[int],
) -> list[Boundary]:
    """The prefixes of the prompt that end with a marked message, found by rendering up to it."""
    found: dict[int, Boundary] = {}
    for mark in sorted(set(conversation.marks)):
        try:
            part = codec.render_chat(
                conversation.messages[: mark + 1],
                tools=tools,
                template_kwargs=conversation.template_kwargs,
                add_generation_prompt=False,
            )
        except ChatTemplateError:
            # Some templates want a turn of the user: that mark is then the head, found otherwise.
            continue
        count = common_prefix(tokens, part.tokens)
        role = conversation.messages[mark].get("role")
        kind = "head" if role in ("system", "developer") else "boundary"
        if 0 < count < len(tokens):
            found[count] = Boundary(count, "head" if kind == "head" else "boundary")
    return list(found.values())
