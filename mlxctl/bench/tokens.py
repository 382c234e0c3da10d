"""The model's tokenizer and chat template, as the servers use them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlxctl.bench.scenarios import Dialect

Message = dict[str, Any]

_PROBE = "qx7_probe"


class ChatTokens:
    """Counts texts and renders conversations of one model folder.

    Raises OSError or ValueError if the folder has no tokenizer that can be loaded.
    """

    def __init__(self, folder: str) -> None:
        # What it would say about the libraries that it can do without is of no use here.
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        os.environ["HF_HUB_OFFLINE"] = "1"
        from transformers import AutoTokenizer

        self._folder = Path(folder)
        self._tokenizer = AutoTokenizer.from_pretrained(folder)

    def count(self, text: str) -> int:
        """Tokens of a text, without any that the tokenizer puts around it."""
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def render(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> list[int]:
        """The token ids of a conversation that asks for an answer."""
        text = self._tokenizer.apply_chat_template(
            [_as_templates_want_it(message) for message in messages],
            tools=list(tools) or None,
            add_generation_prompt=True,
            tokenize=False,
        )
        # The template writes the special tokens itself.
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def end_tokens(self) -> tuple[int, ...]:
        """The ids that end an answer, as the folder and the tokenizer name them.

        Raises OSError or ValueError if a file cannot be read or they name none.
        """
        named = [self._tokenizer.eos_token_id]
        for name in ("config.json", "generation_config.json"):
            path = self._folder / name
            config = json.loads(path.read_text()) if path.exists() else {}
            told = config.get("eos_token_id") if isinstance(config, dict) else config
            found = told if isinstance(told, list) else [told]
            if not all(token is None or type(token) is int for token in found):
                raise ValueError(f"{name}: eos_token_id: expected token ids, found {told!r:.100}")
            named += found
        ids = sorted({token for token in named if token is not None})
        if not ids:
            raise ValueError("it names no token that ends an answer")
        return tuple(ids)

    def dialect(self) -> Dialect:
        """What the template has a place for; raises ValueError if it renders no conversation."""
        user = {"role": "user", "content": "u"}
        function = {"name": _PROBE, "description": "d", "parameters": {"type": "object"}}
        if self._text([user]) is None:
            raise ValueError("it has no chat template that renders a question")
        system = self._text([{"role": "system", "content": _PROBE}, user])
        tools = self._text([user], [{"type": "function", "function": function}])
        return Dialect(
            tools=tools is not None and _PROBE in tools,
            system=system is not None and _PROBE in system,
        )

    def _text(self, messages: list[Message], tools: list[Message] | None = None) -> str | None:
        """A conversation as text; None where the template refuses it, in whatever way."""
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages, tools=tools, add_generation_prompt=True, tokenize=False
                )
            )
        except Exception:
            return None


def _as_templates_want_it(message: Message) -> Message:
    """A message whose calls have objects for arguments, not their JSON text."""
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        arguments = json.loads(function["arguments"])
        calls.append({**call, "function": {**function, "arguments": arguments}})
    return {**message, "tool_calls": calls}
