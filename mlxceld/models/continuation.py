"""A conversation after its reply: what the next turn will begin with. No MLX in here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlxceld.models.boundaries import common_prefix

if TYPE_CHECKING:
    from mlxceld.models.text import TextCodec


def plain_reply(text: str) -> dict[str, Any]:
    """The reply as a client sends it back with the next turn, where it is nothing but text."""
    return {"role": "assistant", "content": text}


class Continuation:
    """Renders a conversation ahead of its next turn; may be used from any thread.

    The rendering of ``messages`` has ``prompt_tokens`` tokens, of which a next turn repeats the
    first ``repeated_tokens``; ``read_reply`` makes a message of a reply's text, as a client will
    send it back. With ``continues`` the reply goes on with the last message.
    """

    def __init__(
        self,
        codec: TextCodec,
        messages: Sequence[Mapping[str, Any]],
        *,
        prompt_tokens: int,
        repeated_tokens: int,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        continues: bool = False,
        read_reply: Callable[[str], Mapping[str, Any]] = plain_reply,
    ) -> None:
        self._codec = codec
        self._prompt_tokens = prompt_tokens
        self._repeated_tokens = repeated_tokens
        self._messages = messages
        self._tools = tools
        self._template_kwargs = template_kwargs
        self._continues = continues
        self._read_reply = read_reply
        self._lock = threading.Lock()
        self._last: tuple[str, list[int]] | None = None
        self._reply: str | None = None

    def note_reply(self, text: str) -> None:
        """The reply is known: its whole text, as it was shown."""
        self._reply = text

    def next_turn(self, text: str) -> list[int]:
        """The tokens that the next turn begins with after the reply ``text``, whatever it says.

        Empty where the template cannot render it.
        """
        with self._lock:
            if self._last is None or self._last[0] != text:
                messages = list(self._messages)
                if self._continues:
                    final = messages.pop()
                    text_so_far = final.get("content")
                    if not isinstance(text_so_far, str):
                        return []
                    reply = self._read_reply(text_so_far + text)
                else:
                    reply = self._read_reply(text)
                tokens = self._codec.next_turn(
                    [*messages, reply],
                    tools=self._tools,
                    template_kwargs=self._template_kwargs,
                )
                self._last = (text, tokens)
            return self._last[1]

    def keeps(self, tokens: Sequence[int]) -> int:
        """How many of ``tokens``, the prompt and what was generated, the next turn begins with.

        Nothing is rendered where the prompt alone tells that it is not all of them. The reply is
        what :meth:`note_reply` was told, else what the tokens say. All of them, where the template
        cannot render a next turn and so nobody can tell.
        """
        length = self._prompt_tokens
        if self._repeated_tokens < length:
            return self._repeated_tokens
        text = self._reply
        if text is None:
            text = self._codec.decode(tokens[length:])
        following = self.next_turn(text)
        return common_prefix(tokens, following) if following else len(tokens)
