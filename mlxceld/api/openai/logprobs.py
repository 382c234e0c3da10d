"""Log-probabilities in the two forms that OpenAI's API has for them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Any

from mlxceld.engine.events import TokenLogprob

_LOWEST = -9999.0
"""JSON has no minus infinity; this is what OpenAI sends in its place."""


def chat_logprobs(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """``{"content": [...], "refusal": null}``."""
    content = [
        {**_entry(token), "top_logprobs": [_entry(other) for other in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """The parallel lists of the completions API; offsets run on through a stream's chunks."""

    def __init__(self) -> None:
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
        """The lists for the next tokens of one choice; offsets are in characters."""
        names: list[str] = []
        values: list[float] = []
        tops: list[dict[str, float]] = []
        offsets: list[int] = []
        for token in tokens:
            names.append(_name(token))
            values.append(_value(token))
            offsets.append(self._offset)
            # The chosen token is always there, beside the asked number of alternatives.
            tops.append({_name(other): _value(other) for other in (*token.top, token)})
            self._offset += len(self._decoder.decode(token.raw))
        return {
            "tokens": names,
            "token_logprobs": values,
            "top_logprobs": tops,
            "text_offset": offsets,
        }


def _entry(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.text, "logprob": _value(token), "bytes": list(token.raw)}


def _value(token: TokenLogprob) -> float:
    return max(token.logprob, _LOWEST)


def _name(token: TokenLogprob) -> str:
    """The token's text; parts of characters, which all read alike, by their bytes."""
    try:
        return token.raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.raw)
