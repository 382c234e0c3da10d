"""OpenAI-style messages into what chat templates expect, and through the template."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from mlxceld.models.errors import ChatTemplateError, one_line
from mlxceld.models.reasoning import template_variables
from mlxceld.models.tool_prompt import with_tools_in_words

log = logging.getLogger(__name__)

_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})

_RESERVED_ARGUMENTS = frozenset(
    {
        "add_generation_prompt",
        "args",
        "chat_template",
        "context",
        "continue_final_message",
        "conversation",
        "conversations",
        "environment",
        "kwargs",
        "max_length",
        "messages",
        "padding",
        "raise_exception",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "self",
        "strftime_now",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Arguments of the renderer itself, which are not the request's to set."""


_PROBE_TOOL = "qx7_probe"
_PROBE_TURN = {"role": "user", "content": "u"}


class ChatRenderer:
    """The chat template of one tokenizer.

    ``tokenizer`` is mlx-lm's TokenizerWrapper. Not thread-safe: its owner holds the lock.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._renders_tools: bool | None = None
        self.available = bool(tokenizer.has_chat_template)
        """Whether the model can render conversations at all."""
        self.source = _template_source(tokenizer) if self.available else ""
        """What identifies the template: its text, or the name of the renderer in its place."""
        self.variables = template_variables(self.source)
        """The arguments that the template reads."""

    @property
    def renders_tools(self) -> bool:
        """Whether the template shows tools to the model. Found by rendering one, once."""
        if self._renders_tools is None:
            self._renders_tools = self.available and self._shows_a_tool()
            if self.available and not self._renders_tools:
                log.info("the chat template does not render tools; the system message names them")
        return self._renders_tools

    def _shows_a_tool(self) -> bool:
        tool = {
            "type": "function",
            "function": {
                "name": _PROBE_TOOL,
                "description": "d",
                "parameters": {"type": "object", "properties": {}},
            },
        }
        for messages in ([{"role": "system", "content": "s"}, _PROBE_TURN], [_PROBE_TURN]):
            try:
                text = self._tokenizer.apply_chat_template(
                    messages, tools=[tool], add_generation_prompt=True, tokenize=False
                )
            except Exception as error:
                # A template that refuses this may take the next.
                log.debug("the chat template does not render a tool: %s", error)
                continue
            return _PROBE_TOOL in text
        return False

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """The conversation as the model reads it.

        Raises ChatTemplateError if there is no template, or with its own words if it refuses.
        """
        if not self.available:
            raise ChatTemplateError(
                "this model has no chat template; use /v1/completions with a plain prompt"
            )
        arguments = dict(template_kwargs or {})
        if reserved := sorted(_RESERVED_ARGUMENTS & arguments.keys()):
            raise ChatTemplateError(
                f"chat_template_kwargs.{reserved[0]} is set by the server: the name is reserved"
            )
        prepared = prepare_messages(messages, knows_developer="developer" in self.source)
        speaks_of_tools = bool(tools) or any(
            message["role"] in ("tool", "function") or "tool_calls" in message
            for message in prepared
        )
        if speaks_of_tools and not self.renders_tools:
            prepared = with_tools_in_words(prepared, tools)
            tools = None

        def apply(conversation: list[dict[str, Any]]) -> str:
            text = self._tokenizer.apply_chat_template(
                conversation,
                tools=[dict(tool) for tool in tools] if tools else None,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tokenize=False,
                **arguments,
            )
            return str(text)

        try:
            return apply(prepared)
        except TypeError as error:
            # Some templates (DeepSeek's) join a call's arguments to text, which an object is not.
            try:
                return apply(with_arguments_as_text(prepared))
            except Exception:
                raise ChatTemplateError(_explain(error)) from error
        except Exception as error:
            raise ChatTemplateError(_explain(error)) from error


def prepare_messages(
    messages: Sequence[Mapping[str, Any]], *, knows_developer: bool = False
) -> list[dict[str, Any]]:
    """Messages as templates expect them; the given ones are left as they are.

    ``developer`` becomes ``system`` where the template does not know it; text parts are joined by
    newlines; absent content becomes empty text; tool-call arguments in JSON become objects.
    """
    prepared = []
    for index, message in enumerate(messages):
        changed = dict(message)
        if changed.get("role") == "developer" and not knows_developer:
            changed["role"] = "system"
        changed["content"] = _text_of(changed.get("content"), index)
        if changed.get("tool_calls"):
            changed["tool_calls"] = [_parsed_call(call) for call in changed["tool_calls"]]
        else:
            changed.pop("tool_calls", None)
        prepared.append(changed)
    return prepared


def with_arguments_as_text(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Prepared messages with their tool calls' arguments as JSON text again."""
    return [
        {**message, "tool_calls": [_written_call(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else dict(message)
        for message in messages
    ]


def _written_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), dict):
        return call
    text = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


def _text_of(content: Any, index: int) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise ChatTemplateError(
            f"messages[{index}].content is {type(content).__name__};"
            " expected a string or a list of text parts"
        )
    texts = []
    for number, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type", "text") if isinstance(part, Mapping) else type(part).__name__
        text = part.get("text") if isinstance(part, Mapping) else None
        if kind not in _TEXT_PARTS or not isinstance(text, str):
            raise ChatTemplateError(
                f"messages[{index}].content[{number}] is of type {kind!r};"
                " this model takes text parts with a string 'text'"
            )
        texts.append(text)
    return "\n".join(texts)


def _parsed_call(call: Any) -> Any:
    """A tool call whose arguments are an object, if they are the JSON text of one."""
    if not isinstance(call, Mapping):
        return call
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return dict(call)
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        return dict(call)
    if not isinstance(arguments, dict):
        return dict(call)
    return {**call, "function": {**function, "arguments": arguments}}


def _template_source(tokenizer: Any) -> str:
    # The wrapper hides its own renderer, which replaces the text template where a model has one.
    renderer = getattr(tokenizer, "_chat_template", None)
    if renderer is not None:
        return f"python:{renderer.__module__}.{renderer.__qualname__}"
    template = tokenizer.chat_template
    if template is None:
        kind = type(tokenizer._tokenizer)
        return f"python:{kind.__module__}.{kind.__qualname__}"
    if isinstance(template, str):
        return template
    return json.dumps(template, sort_keys=True)


def _explain(error: Exception) -> str:
    """The template's own message where it raised one, else what failed in it."""
    if any(kind.__name__ == "TemplateError" for kind in type(error).__mro__[:2]):
        return one_line(error)
    return f"the model's chat template failed: {type(error).__name__}: {one_line(error)}"
