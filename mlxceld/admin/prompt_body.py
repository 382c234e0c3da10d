"""The prompt in an admin request: messages or raw text, read as the public API reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING, Any

from mlxceld.admin.errors import AdminError
from mlxceld.admin.schemas import ExplainOrder
from mlxceld.engine.request import RAW_PROMPT_SIGNATURE

if TYPE_CHECKING:
    from mlxceld.models.text import TextCodec

_MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
"""What of a message the chat template gets to see, as in the public API."""

_MOST_ORDERS = 5
"""Of so many tools every order is tried: 120 of them."""


@dataclass(frozen=True, slots=True)
class PromptBody:
    """A conversation, or a raw prompt where ``messages`` is None."""

    messages: list[dict[str, Any]] | None
    prompt: str | list[int]
    tools: list[dict[str, Any]] | None
    tool_choice: object
    template_kwargs: dict[str, Any] | None
    add_generation_prompt: bool
    continue_final_message: bool

    def raw_tokens(self, codec: TextCodec) -> list[int]:
        """A raw prompt's tokens."""
        if isinstance(self.prompt, list):
            return self.prompt
        return codec.encode(self.prompt, add_special_tokens=True)

    def signature(self, codec: TextCodec) -> str:
        """How the prompt is rendered: only prompts of one signature share a cache."""
        if self.messages is None:
            return RAW_PROMPT_SIGNATURE
        return codec.template_signature(
            tools=self.tools, tool_choice=self.tool_choice, template_kwargs=self.template_kwargs
        )

    def variants(self, codec: TextCodec) -> Iterator[tuple[str, str]]:
        """Signatures that a small change would give, each with what the change is."""
        own = self.signature(codec)
        for differs, variant in self._changed():
            signature = variant.signature(codec)
            if signature != own:
                yield differs, signature

    def _changed(self) -> Iterator[tuple[str, PromptBody]]:
        if self.messages is None:
            return
        tools = self.tools or []
        if 1 < len(tools) <= _MOST_ORDERS:
            for order in permutations(tools):
                yield "tools_order", replace(self, tools=list(order))
        given = self.template_kwargs or {}
        without = [{k: v for k, v in given.items() if k != name} for name in given]
        flipped = [{**given, k: not v} for k, v in given.items() if isinstance(v, bool)]
        thinking = [{**given, "enable_thinking": value} for value in (True, False)]
        for kwargs in (*flipped, *without, *thinking, {}):
            yield "chat_template_kwargs", replace(self, template_kwargs=kwargs)
        for choice in (None, "none", "required"):
            yield "tool_choice", replace(self, tool_choice=choice)
        yield "tools", replace(self, tools=None)
        yield "tools", replace(self, tools=None, tool_choice=None)
        yield "raw_prompt", replace(self, messages=None)


def read_prompt(body: ExplainOrder) -> PromptBody:
    """The prompt of a body; raises AdminError where there is none, or two."""
    messages, prompt = body.messages, body.prompt
    if (messages is None) == (prompt is None):
        found = "neither is" if messages is None else "both are"
        raise AdminError(
            400, f"{found} given, expected one of messages and prompt", field="messages"
        )
    tools = body.tools
    if tools is not None and not _objects(tools):
        raise AdminError(400, "tools is not a list of objects", field="tools")
    kwargs = body.chat_template_kwargs
    if kwargs is not None and not isinstance(kwargs, dict):
        raise AdminError(400, "chat_template_kwargs is not an object", field="chat_template_kwargs")
    continued = body.continue_final_message or False
    generation_prompt = body.add_generation_prompt
    return PromptBody(
        messages=None if messages is None else _messages(messages),
        prompt="" if prompt is None else _raw(prompt),
        tools=tools or None,
        tool_choice=body.tool_choice,
        template_kwargs=kwargs,
        add_generation_prompt=not continued if generation_prompt is None else generation_prompt,
        continue_final_message=continued,
    )


def _messages(value: Any) -> list[dict[str, Any]]:
    if not value or not _objects(value):
        raise AdminError(
            400, "messages is not a list of at least one object with a role", field="messages"
        )
    for index, message in enumerate(value):
        if not isinstance(message.get("role"), str):
            name = f"messages[{index}].role"
            raise AdminError(400, f"{name} is missing or no string", field=name)
    return [
        {name: message[name] for name in _MESSAGE_FIELDS if message.get(name) is not None}
        for message in value
    ]


def _raw(value: Any) -> str | list[int]:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(type(token) is int and token >= 0 for token in value):
        return value
    raise AdminError(
        400, "prompt is neither a string nor a list of token ids from 0", field="prompt"
    )


def _objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, Mapping) for item in value)
