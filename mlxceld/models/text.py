"""Text into tokens and back, for every thread, without an array."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
from mlxceld.models.encoding import TextEncoder
from mlxceld.models.end_tokens import template_end_id
from mlxceld.models.grammar import JsonGrammar, LazyCompiler
from mlxceld.models.output_format import ANSWER_ENDS, MESSAGE_END, OutputFormat, output_format
from mlxceld.models.signature import template_signature
from mlxceld.models.template import install
from mlxceld.models.text_limit import TextLimit
from mlxceld.models.vocabulary import Vocabulary


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
    from any thread, and none waits for what another thread does, unless the tokenizer is one in
    Python.
    """

    def __init__(
        self, tokenizer: Any, vocab_size: int, *, special_tokens_in_text: bool = False
    ) -> None:
        self.vocab_size = vocab_size
        install()
        self._encoder = TextEncoder(tokenizer)
        self._control_tokens = ControlTokens(tokenizer, written=str(tokenizer.chat_template))
        self._chat = ChatRenderer(
            tokenizer, None if special_tokens_in_text else self._control_tokens
        )
        self._vocabulary = Vocabulary(tokenizer)
        self._limit = TextLimit(
            self._vocabulary.longest_token_bytes, shrinks=not self._vocabulary.keeps_length
        )
        self.output_format: OutputFormat = output_format(tokenizer)
        """How this model's answers are to be read."""
        self.eos_ids: frozenset[int] = self._end_ids(tokenizer)
        """The tokens that end an answer."""
        self._grammars = LazyCompiler(tokenizer, vocab_size, self.eos_ids)
        self._boundaries = BoundaryFinder(self._chat_tokens)

    def _end_ids(self, tokenizer: Any) -> frozenset[int]:
        ids = {int(token) for token in tokenizer.eos_token_ids}
        if self.output_format.harmony:
            # Channel messages end one by one, and the answer with the last of them.
            vocabulary = tokenizer.get_vocab()
            ids |= {vocabulary[name] for name in ANSWER_ENDS if name in vocabulary}
            ids.discard(vocabulary.get(MESSAGE_END))
        else:
            end = template_end_id(self._chat, tokenizer)
            ids |= set() if end is None else {end}
        return frozenset(token for token in ids if 0 <= token < self.vocab_size)

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
        return self._chat.fitting.described

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids; ``add_special_tokens`` puts what the model's tokenizer adds around a text."""
        return self._encoder.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of the tokens; ids beyond the tokenizer's vocabulary give none."""
        return self._encoder.decode(ids, skip_special_tokens=skip_special_tokens)

    def text_limit(self, context_length: int) -> int:
        """A text of more bytes is more than ``context_length`` tokens, whatever it says."""
        return self._limit.bytes_within(context_length)

    def least_tokens(self, texts: Iterable[str]) -> int:
        """As many tokens as the texts are at least; costs next to nothing, however long they are.

        Counts characters, of which a byte is the least.
        """
        return self._limit.least_tokens(texts)

    def token_text(self, token: int) -> str:
        """How a token reads alone: U+FFFD where it is a part of a character."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The token's exact bytes; a special token's are its name's."""
        return self._vocabulary.bytes_of(token)

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
        return self._chat.renders_tools

    def prepare_grammars(self) -> None:
        """Build what every schema needs, in a second or two, so that the first need not wait."""
        self._grammars.prepare()

    def grammar(self, schema: Mapping[str, Any] | str) -> JsonGrammar:
        """Make a JSON schema, or its text, ready for constrained answers.

        Raises GrammarError if it cannot be.
        """
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
            return self.encode(rendering.text, add_special_tokens=False)
        return self._control_tokens.encode(rendering.text, rendering.guard)

    def _text_bytes(self, token: int) -> bytes:
        return b"" if token in self._vocabulary.special_ids else self.token_bytes(token)
