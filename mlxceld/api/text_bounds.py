"""What is refused by its size alone, before anything is rendered or tokenized."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mlxceld.api.errors import from_engine
from mlxceld.engine.errors import ContextLengthError

if TYPE_CHECKING:
    from mlxceld.api.context import ApiContext

_TOKENIZE_BYTES = 2**20


def check_fits(
    context: ApiContext, texts: Iterable[str], param: str, *, messages: int = 0, contexts: int = 1
) -> None:
    """Raise the error of a prompt that is too long where the texts cannot be shorter than that.

    Too long is what takes more than ``contexts`` times the model's context. The number of tokens
    that the error names is then the least that there can be: no token stands for more bytes than
    the vocabulary's longest, and none of the ``messages`` is nothing.
    """
    length = context.model().context_length
    least = max(context.text().least_tokens(texts), messages)
    if least > length * contexts:
        raise from_engine(ContextLengthError(least, length), prompt_param=param)


def tokenize_limit(context: ApiContext) -> int:
    """How many bytes ``/tokenize`` takes: all that can fit the context, and 1 MiB at least."""
    return max(_TOKENIZE_BYTES, context.text().text_limit(context.model().context_length))


def detokenize_limit(context: ApiContext) -> int:
    """How many ids ``/detokenize`` takes: a context full, and 65,536 at least."""
    return max(65_536, context.model().context_length)
