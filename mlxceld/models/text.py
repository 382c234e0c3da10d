"""Text into tokens and back, for every thread, without an array."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxceld.models.boundaries import Boundary, BoundaryFinder
from mlxceld.models.chat import ChatRenderer, Rendering
from mlxceld.models.control_tokens import ControlTokens
from mlxceld.models.detokenizer import (
    ByteDetokenizer,
    Detokenizer,
    MarkerDetokenizer,
    WindowDetokenizer,
)
from mlxceld.models.grammar import GrammarCompiler, JsonGrammar
from mlxceld.models.output_format import OutputFormat, output_format
from mlxceld.models.signature import template_signature
from mlxceld.models.vocabulary import Vocabulary

_CACHED_WORDS = 2000


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A conversation as the chat template renders it, as text and as token ids.

    ``boundaries`` are the prefixes of ``tokens`` that later prompts begin with, and the next turn
    repeats its first ``repeated`` tokens; both only if asked for.
    """

    text: str
    tokens: list[int]
    boundaries: tuple[Boundary, ...] = ()
    repeated: int = 0


class TextCodec:
    """One model's tokenizer and chat template.

    ``tokenizer`` is mlx-lm's TokenizerWrapper; ``vocab_size`` the width of the model's logits,
    which may exceed the tokenizer's vocabulary. With ``special_tokens_in_text`` control tokens in
    the texts of a conversation steer the model, else they are text. Every method may be called
    from any thread: one lock guards the tokenizer, whose own settings change during a call.
    """

    def __init__(
        self, tokenizer: Any, vocab_size: int, *, special_tokens_in_text: bool = False
    ) -> None:
        self.vocab_size = vocab_size
        self.eos_ids: frozenset[int] = frozenset(int(token) for token in tokenizer.eos_token_ids)
        self._lock = threading.Lock()
        self._tokenizer = tokenizer
        _limit_word_cache(tokenizer)
        self._control_tokens = ControlTokens(tokenizer, written=str(tokenizer.chat_template))
        self._chat = ChatRenderer(
            tokenizer, None if special_tokens_in_text else self._control_tokens
        )
        self._vocabulary = Vocabulary(tokenizer)
        self._grammars: GrammarCompiler | None = None
        self.output_format: OutputFormat = output_format(tokenizer)
        """How this model's answers are to be read."""
        self._bytes: dict[int, bytes] = {}
        self._boundaries = BoundaryFinder(self._chat_tokens)

    @property
    def has_chat_template(self) -> bool:
        """Whether :meth:`render_chat` can work."""
        return self._chat.available

    @property
    def template_variables(self) -> frozenset[str]:
        """The arguments that the chat template reads."""
        return self._chat.variables

    @property
    def template_steps(self) -> Mapping[str, str]:
        """The steps by which conversations are fitted to the template, and what each does."""
        with self._lock:
            return self._chat.fitting.described

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids; ``add_special_tokens`` puts what the model's tokenizer adds around a text."""
        with self._lock:
            return self._encode(text, add_special_tokens)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of the tokens; ids beyond the tokenizer's vocabulary give none."""
        with self._lock:
            return self._decode(ids, skip_special_tokens)

    def token_text(self, token: int) -> str:
        """How a token reads alone: U+FFFD where it is a part of a character."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The token's exact bytes; a special token's are its name's."""
        found = self._bytes.get(token)
        if found is None:
            with self._lock:
                found = self._vocabulary.bytes_of(token)
            self._bytes[token] = found
        return found

    def detokenizer(
        self, prompt: Sequence[int], shown: frozenset[int] = frozenset()
    ) -> Detokenizer:
        """A detokenizer for what follows ``prompt``, whose end decides how the text begins.

        Special tokens give no text, but for the names of those in ``shown``.
        """
        if shown:
            return MarkerDetokenizer(self.detokenizer(prompt), self.token_text, shown)
        if self._vocabulary.byte_level:
            return ByteDetokenizer(self._text_bytes, prompt)
        return WindowDetokenizer(self.decode, prompt, self._vocabulary.special_ids)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        with_boundaries: bool = False,
    ) -> RenderedPrompt:
        """Render a conversation as the model's chat template does.

        ``with_boundaries`` finds its boundaries too, which costs a second rendering. Raises
        ChatTemplateError (a ValueError) where the model has no template, or with the template's
        own message where it refuses.
        """
        with self._lock:
            rendering = self._chat.render(
                messages,
                tools=tools,
                template_kwargs=template_kwargs,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
            )
            tokens = self._encode_rendering(rendering)
        text = rendering.text if rendering.guard is None else rendering.guard.reveal(rendering.text)
        if not with_boundaries:
            return RenderedPrompt(text, tokens)
        found = self._boundaries.find(
            messages,
            tokens,
            tools=tools,
            template_kwargs=template_kwargs,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        return RenderedPrompt(text, tokens, found.marks, found.repeated)

    def next_turn(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The tokens that the next turn begins with, whatever it says.

        ``messages`` ends with the assistant's reply. Empty where the template cannot render it.
        """
        return self._boundaries.next_turn(messages, tools=tools, template_kwargs=template_kwargs)

    @property
    def renders_tools(self) -> bool:
        """Whether the chat template has a place for tools; else they go to the system message."""
        with self._lock:
            return self._chat.renders_tools

    def grammar(self, schema: Mapping[str, Any]) -> JsonGrammar:
        """Make a JSON schema ready for constrained answers; raises GrammarError if it cannot be."""
        with self._lock:
            if self._grammars is None:
                self._grammars = GrammarCompiler(
                    getattr(self._tokenizer, "_tokenizer", self._tokenizer),
                    self.vocab_size,
                    self.eos_ids,
                )
            return self._grammars.compile(schema)

    def template_signature(
        self,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: object = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """What names this way of rendering, in hex: only prompts of one signature share a cache."""
        return template_signature(
            self._chat.source,
            tools=tools,
            tool_choice=tool_choice,
            template_kwargs=template_kwargs,
        )

    def _chat_tokens(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
        add_generation_prompt: bool,
    ) -> list[int]:
        with self._lock:
            rendering = self._chat.render(
                messages,
                tools=tools,
                template_kwargs=template_kwargs,
                add_generation_prompt=add_generation_prompt,
            )
            return self._encode_rendering(rendering)

    def _encode_rendering(self, rendering: Rendering) -> list[int]:
        # The template writes the special tokens itself.
        if rendering.guard is None:
            return self._encode(rendering.text, False)
        return self._control_tokens.encode(rendering.text, rendering.guard)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # verbose=False: how long a prompt may be is the engine's to say, not a log line's.
        ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens, verbose=False)
        return list(ids)

    def _decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        # Clean-up would drop spaces before punctuation that the model has written.
        text = self._tokenizer.decode(
            list(ids),
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )
        return str(text)

    def _text_bytes(self, token: int) -> bytes:
        return b"" if token in self._vocabulary.special_ids else self.token_bytes(token)


def _limit_word_cache(tokenizer: Any) -> None:
    """Have the tokenizer remember fewer words.

    It keeps 10,000 for each thread that encodes, of up to 256 bytes each, at some 30 bytes of
    memory a byte. Where it does not split text at spaces, as Gemma's, a word is a whole message.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    resize = getattr(getattr(backend, "model", None), "_resize_cache", None)
    if resize is not None:
        resize(_CACHED_WORDS)
