"""From sampled tokens to the deltas that a caller sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxceld.engine.events import Delta, TokenLogprob
from mlxceld.engine.stops import StopMatcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxceld.models.text import TextCodec


class TokenOutput:
    """Turns one sequence's tokens into text, whole characters only, and watches for stop strings.

    Tokens whose text is held back (half a character, a possible stop string) wait with it, so
    that a delta's text and tokens belong together.
    """

    def __init__(self, codec: TextCodec, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self._detokenizer = codec.detokenizer(prompt)
        self._matcher = StopMatcher(stops)
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._texts: list[str] = []

    def add(self, token: int, logprob: TokenLogprob | None = None) -> Delta | None:
        """Take one token; return what can be shown now, if anything."""
        self._tokens.append(token)
        if logprob is not None:
            self._logprobs.append(logprob)
        text = self._matcher.push(self._detokenizer.add(token))
        return self._release(text) if text or self.stop_text is not None else None

    def finish(self) -> Delta | None:
        """The sequence has ended: return the rest."""
        text = ""
        if self.stop_text is None:
            text = self._matcher.push(self._detokenizer.finish())
            if self.stop_text is None:
                text += self._matcher.finish()
        return self._release(text) if text or self._tokens else None

    @property
    def text(self) -> str:
        """All that was shown."""
        return "".join(self._texts)

    @property
    def stop_text(self) -> str | None:
        """The stop string that was met."""
        return self._matcher.matched

    def _release(self, text: str) -> Delta:
        delta = Delta(text, tuple(self._tokens), tuple(self._logprobs))
        self._texts.append(text)
        self._tokens.clear()
        self._logprobs.clear()
        return delta
