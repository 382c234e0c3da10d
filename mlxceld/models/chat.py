"""OpenAI-style messages through a chat template, fitted to what that can render."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxceld.models.control_tokens import ControlTokens, Guard
from mlxceld.models.errors import ChatTemplateError, one_line
from mlxceld.models.fitting.arguments import read_arguments
from mlxceld.models.fitting.conversation import Conversation
from mlxceld.models.fitting.fitting import Fitting, find_fitting
from mlxceld.models.fitting.tool_fields import without_nulls
from mlxceld.models.reasoning import renderer_variables, template_variables

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


@dataclass(frozen=True, slots=True)
class Rendering:
    """A conversation as the template writes it.

    Where its texts had control tokens, ``guard`` stands for them in ``text``: they have to be
    put back and encoded apart from the template's own.
    """

    text: str
    guard: Guard | None = None


class ChatRenderer:
    """The chat template of one tokenizer.

    ``tokenizer`` is mlx-lm's TokenizerWrapper, which rendering only reads: any thread may.
    ``control_tokens`` keeps those in the texts of a conversation apart, None lets them be.
    """

    def __init__(self, tokenizer: Any, control_tokens: ControlTokens | None = None) -> None:
        self._tokenizer = tokenizer
        self._control_tokens = control_tokens
        self._fitting: Fitting | None = None
        self._finding = threading.Lock()
        self.available = bool(tokenizer.has_chat_template)
        """Whether the model can render conversations at all."""
        self.source = _template_source(tokenizer) if self.available else ""
        """What identifies the template: its text, or the name of the renderer in its place."""
        self.variables = _variables(tokenizer) if self.available else frozenset()
        """The arguments that the template reads."""

    @property
    def fitting(self) -> Fitting:
        """How conversations are fitted to the template. Found by small renderings, once."""
        with self._finding:
            if self._fitting is None:
                self._fitting = self._find_fitting() if self.available else Fitting()
            return self._fitting

    @property
    def renders_tools(self) -> bool:
        """Whether the template shows tools to the model."""
        return self.available and not self.fitting.uses("tools_in_words")

    def _find_fitting(self) -> Fitting:
        def render(conversation: Conversation, generation: bool) -> str:
            return self._apply(conversation, {"add_generation_prompt": generation})

        found = find_fitting(render, knows_developer="developer" in self.source)
        log.info("chat template: %s", ", ".join(found.described) or "takes conversations as given")
        if found.unshown:
            log.debug("chat template: does not show %s", "; ".join(found.unshown))
        return found

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> Rendering:
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
        conversation = prepare(messages, tools)
        guard = None
        if self._control_tokens is not None:
            guard = self._control_tokens.guard(conversation, arguments)
        if guard is not None:
            conversation = guard.hide_conversation(conversation)
            arguments = guard.hide_arguments(arguments)
        arguments |= {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }
        try:
            text = self.fitting.render(conversation, lambda fitted: self._apply(fitted, arguments))
        except ChatTemplateError:
            raise
        except Exception as error:
            raise ChatTemplateError(_explain(error)) from error
        return Rendering(text, guard)

    def _apply(self, conversation: Conversation, arguments: Mapping[str, Any]) -> str:
        """The conversation through the template as it is; raises whatever the template does."""
        text = self._tokenizer.apply_chat_template(
            conversation.messages, tools=conversation.tools or None, tokenize=False, **arguments
        )
        return str(text)


def prepare(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
) -> Conversation:
    """A conversation as the fitting takes it; what was given is left as it is.

    The parts of a text are joined by newlines; absent content becomes empty text; arguments of
    calls become objects where they are one; fields of tools that are null are dropped. Raises
    ChatTemplateError, with the path, for content or calls that are of no known form.
    """
    prepared = []
    for index, message in enumerate(messages):
        changed = dict(message)
        if changed.get("role") == "function":
            changed["role"] = "tool"
        changed["content"] = _text_of(changed.get("content"), index)
        if calls := changed.pop("tool_calls", None):
            changed["tool_calls"] = [
                _read_call(call, f"messages[{index}].tool_calls[{number}]")
                for number, call in enumerate(calls)
            ]
        prepared.append(changed)
    return Conversation(prepared, [without_nulls(tool) for tool in tools] if tools else None)


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
        field = "refusal" if kind == "refusal" else "text"
        text = part.get(field) if isinstance(part, Mapping) else None
        if kind not in (*_TEXT_PARTS, "refusal") or not isinstance(text, str):
            raise ChatTemplateError(
                f"messages[{index}].content[{number}] is of type {kind!r};"
                " this model takes text parts with a string 'text'"
            )
        texts.append(text)
    return "\n".join(texts)


def _read_call(call: Any, path: str) -> dict[str, Any]:
    """A call with its arguments read; its function may also stand in the call itself."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if function is None and isinstance(call, Mapping) and "name" in call:
        function = {key: call[key] for key in ("name", "arguments") if key in call}
        call = {key: value for key, value in call.items() if key not in function}
    if not isinstance(function, Mapping):
        raise ChatTemplateError(f"{path} has no function; expected one with name and arguments")
    arguments = read_arguments(function.get("arguments"))
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


def _variables(tokenizer: Any) -> frozenset[str]:
    renderer = getattr(tokenizer, "_chat_template", None)
    if renderer is not None:
        return renderer_variables(renderer)
    template = tokenizer.chat_template
    if template is None:
        return renderer_variables(type(tokenizer._tokenizer).apply_chat_template)
    texts = [template] if isinstance(template, str) else template.values()
    return frozenset().union(*map(template_variables, texts))


def _explain(error: Exception) -> str:
    """The template's own message where it raised one, else what failed in it."""
    if any(kind.__name__ == "TemplateError" for kind in type(error).__mro__[:2]):
        return one_line(error)
    return f"the model's chat template failed: {type(error).__name__}: {one_line(error)}"
