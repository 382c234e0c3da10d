"""What a prompt ends in: the state that the reading of its answer begins with."""

from __future__ import annotations

from collections.abc import Sequence

from mlxceld.models.output_format import CHANNEL, MESSAGE, START
from mlxceld.models.text import TextCodec


def opened_message(codec: TextCodec, tokens: Sequence[int]) -> str:
    """The channel message that a prompt ends in, as far as its control tokens go.

    Names of control tokens in a text are text, and do not count. Empty where no message is open.
    """
    ids = {name: codec.encode(name, add_special_tokens=False) for name in (START, MESSAGE)}
    start = _last(tokens, ids[START])
    rest = list(tokens[start:])
    at = _last(rest, ids[MESSAGE]) if start else 0
    if not at:
        return codec.decode(rest, skip_special_tokens=False) if start else ""
    if codec.output_format.markers & set(rest[at:]):
        return ""
    return codec.decode(rest[:at], skip_special_tokens=False)


def is_answering(opened: str) -> bool:
    """Whether a message that is open is the answer proper, so that a schema holds at once."""
    return opened.endswith(MESSAGE) and "final" in opened.partition(CHANNEL)[2]


def opens_reasoning(text: str, continued: object, thinking: tuple[str, str]) -> bool:
    """Whether a prompt ends inside reasoning.

    ``continued`` is the content that the answer goes on with, None where it begins anew. A client
    may have opened reasoning in it.
    """
    start, end = thinking
    if isinstance(continued, str) and start in continued:
        return continued.rfind(start) > continued.rfind(end)
    before = text.rstrip()
    if isinstance(continued, str) and continued.strip():
        before = before.removesuffix(continued.rstrip()).rstrip()
    return before.endswith(start)


def _last(tokens: Sequence[int], marker: Sequence[int]) -> int:
    """Behind the last place where the one token of ``marker`` stands; 0 if it does not."""
    if len(marker) != 1:
        return 0
    at = len(tokens)
    while at and tokens[at - 1] != marker[0]:
        at -= 1
    return at
