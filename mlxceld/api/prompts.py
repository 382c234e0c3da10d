"""Prompts of requests that are not to be answered: warmed, explained.

A body is read as the API that takes it reads it, and rendered by what renders for an answer. So a
prompt that is warmed is the one that the request will have.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlxceld.api.anthropic.conversion import conversation_of
from mlxceld.api.anthropic.fields import COUNT_FIELDS, check_fields
from mlxceld.api.anthropic.schemas import PromptRequest
from mlxceld.api.context import ApiContext
from mlxceld.api.conversation import Conversation
from mlxceld.api.errors import invalid
from mlxceld.api.notes import Notes
from mlxceld.api.openai.completions import tokens_of
from mlxceld.api.openai.conversation import read_chat
from mlxceld.api.openai.params import session_of
from mlxceld.api.openai.schemas import CompletionRequest
from mlxceld.api.prepare import Prepared, common_beginning, prepare
from mlxceld.api.responses import fields as responses_fields
from mlxceld.api.responses.input import input_of
from mlxceld.api.responses.schemas import CountRequest
from mlxceld.api.responses.store import ResponseStore
from mlxceld.api.validation import validate
from mlxceld.engine.request import ANONYMOUS_SESSION, RAW_PROMPT_SIGNATURE
from mlxceld.models.boundaries import Boundary

_ASKING_ROLES = ("user", "tool")


class Api(enum.StrEnum):
    """The APIs whose bodies have a prompt."""

    CHAT = "chat"
    MESSAGES = "messages"
    RESPONSES = "responses"
    COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a body's request would be computed from.

    ``prepared`` is None for a raw prompt. ``boundaries`` are where its states are to be kept, and
    ``kept_tokens`` how many leading tokens are to be stored.
    """

    tokens: Sequence[int]
    signature: str
    session: str
    prepared: Prepared | None = None
    boundaries: tuple[Boundary, ...] = ()
    kept_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Asked:
    conversation: Conversation
    session: str | None


def api_of(body: Mapping[str, Any]) -> Api:
    """Which API a body is for, by the fields that only one of them has."""
    if "input" in body or "previous_response_id" in body:
        return Api.RESPONSES
    if "messages" not in body:
        return Api.COMPLETIONS
    tools = body.get("tools")
    ours = isinstance(tools, list) and any(
        isinstance(tool, Mapping) and "function" not in tool and "name" in tool for tool in tools
    )
    if ours or not body.keys().isdisjoint(("system", "thinking", "stop_sequences")):
        return Api.MESSAGES
    return Api.MESSAGES if _has_blocks(body["messages"]) else Api.CHAT


class Prompts:
    """Reads bodies as the public API does; ``store`` has the responses that they may continue."""

    def __init__(self, context: ApiContext, store: ResponseStore) -> None:
        self._context = context
        self._store = store

    async def read(self, body: Mapping[str, Any], api: Api | None = None) -> Prompt:
        """The prompt of a request with this body; raises ApiError as that request would."""
        api = api or _told_apart(body)
        if api is Api.COMPLETIONS:
            return await self._raw(body)
        asked = self._conversation(body, api)
        prepared = await prepare(self._context, asked.conversation)
        return _prompt_of(prepared, asked.session)

    async def to_keep(self, body: Mapping[str, Any], api: Api | None = None) -> Prompt:
        """The prompt that computes and stores what a request with this body begins with.

        One that asks nothing, as with a system text alone, is computed as far as any request that
        goes on from it repeats it. Where prompts are resumed from snapshots, one is taken before
        the last token, for every session. Raises ApiError as the request would.
        """
        api = api or _told_apart(body)
        if api is Api.COMPLETIONS:
            return self._kept(await self._raw(body), asks=True)
        asked = self._conversation(body, api)
        conversation = asked.conversation
        asks = conversation.continued or conversation.messages[-1].get("role") in _ASKING_ROLES
        if asks:
            prepared = await prepare(self._context, conversation)
            return self._kept(_prompt_of(prepared, asked.session), asks=True)
        prepared = await prepare(self._context, replace(conversation, generation_prompt=False))
        begun = await common_beginning(self._context, prepared.conversation)
        prompt = _prompt_of(prepared, asked.session)
        return self._kept(replace(prompt, tokens=begun or prompt.tokens), asks=not begun)

    def _kept(self, prompt: Prompt, *, asks: bool) -> Prompt:
        tokens = list(prompt.tokens)
        if not self._context.keeps_snapshots:
            return replace(prompt, boundaries=(), kept_tokens=len(tokens))
        if not asks:
            # States are kept before the last token: this one stands for whatever comes next.
            tokens.append(tokens[-1])
        kept = len(tokens) - 1
        heads = {mark.tokens for mark in prompt.boundaries if asks and mark.tokens < kept}
        marks = tuple(Boundary(at, "head") for at in sorted({*heads, kept}))
        return replace(prompt, tokens=tokens, boundaries=marks, kept_tokens=kept)

    async def _raw(self, body: Mapping[str, Any]) -> Prompt:
        fields = validate(CompletionRequest, dict(body))
        prompts = await tokens_of(self._context, fields.prompt)
        if len(prompts) != 1:
            raise invalid("prompt", f"prompt has {len(prompts)} prompts, expected one")
        return Prompt(prompts[0], RAW_PROMPT_SIGNATURE, session_of(fields))

    def _conversation(self, body: Mapping[str, Any], api: Api) -> _Asked:
        notes, given = Notes(), dict(body)
        if api is Api.CHAT:
            chat = read_chat(given, notes)
            return _Asked(chat.conversation, session_of(chat.fields))
        if api is Api.MESSAGES:
            check_fields(COUNT_FIELDS, given, notes)
            prompt = validate(PromptRequest, {"model": "", **given})
            metadata = given.get("metadata")
            user = metadata.get("user_id") if isinstance(metadata, Mapping) else None
            return _Asked(conversation_of(prompt, notes), user if isinstance(user, str) else None)
        responses_fields.check_fields(given, notes)
        fields = validate(CountRequest, given)
        read = input_of(fields, fields.input or [], self._store, notes)
        chain = read.previous.session if read.previous else None
        named = (given.get(name) for name in ("prompt_cache_key", "user"))
        return _Asked(
            read.conversation, next((one for one in named if isinstance(one, str) and one), chain)
        )


def _prompt_of(prepared: Prepared, session: str | None) -> Prompt:
    return Prompt(
        prepared.prompt.tokens,
        prepared.signature,
        session or ANONYMOUS_SESSION,
        prepared,
        prepared.prompt.boundaries,
    )


def _told_apart(body: Mapping[str, Any]) -> Api:
    """See :func:`api_of`; raises ApiError for what is no request, or two."""
    found = [name for name in ("messages", "input", "prompt") if body.get(name) is not None]
    # A stored prompt of the Responses API is an object.
    if "input" in found or "previous_response_id" in body:
        return Api.RESPONSES
    if len(found) != 1:
        seen = "neither is" if not found else "both are"
        raise invalid("messages", f"{seen} given, expected one of messages, input and prompt")
    return api_of(body)


def _has_blocks(messages: object) -> bool:
    """Whether messages have blocks as only Anthropic's API has them."""
    kinds = ("tool_use", "tool_result", "thinking", "redacted_thinking", "document")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for block in content if isinstance(content, list) else ():
            if isinstance(block, Mapping) and (
                block.get("type") in kinds or block.get("cache_control")
            ):
                return True
    return False
