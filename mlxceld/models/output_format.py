"""What a model's answers consist of besides text: reasoning, tool calls, channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlxceld.models.calls import CallFormat, call_format

CHANNEL = "<|channel|>"
MESSAGE = "<|message|>"
START = "<|start|>"
MESSAGE_END = "<|end|>"
ANSWER_ENDS = ("<|call|>", "<|return|>")

_HARMONY = (CHANNEL, MESSAGE, START, MESSAGE_END, *ANSWER_ENDS, "<|constrain|>")


_INSIDE = frozenset({"[ARGS]", '<|"|>', "<escape>", "<|open|>", "<|sep|>", "<|close|>"})
"""What stands inside calls in some forms, beside what has the word in its name."""


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """How one model's answers are to be read.

    ``thinking`` is the pair of markers around reasoning; ``calls`` the form of tool calls;
    ``harmony`` says that the answer is a series of channel messages, which brings both.
    ``markers`` are special tokens whose names have to be seen in the text for that.
    ``answer_opens`` is the token sequence after which the answer proper begins where the prompt
    or the model opens with reasoning; empty if there is none.
    """

    thinking: tuple[str, str] | None = None
    calls: CallFormat | None = None
    harmony: bool = False
    markers: frozenset[int] = frozenset()
    answer_opens: tuple[int, ...] = ()


def output_format(tokenizer: Any) -> OutputFormat:
    """Read off mlx-lm's TokenizerWrapper, its template and its vocabulary."""
    vocabulary = tokenizer.get_vocab()
    if all(name in vocabulary for name in _HARMONY[:4]):
        markers = frozenset(vocabulary[name] for name in _HARMONY if name in vocabulary)
        opens = tokenizer.encode(f"{CHANNEL}final{MESSAGE}", add_special_tokens=False)
        return OutputFormat(harmony=True, markers=markers, answer_opens=tuple(opens))
    thinks = getattr(tokenizer, "has_thinking", False)
    thinking = (tokenizer.think_start, tokenizer.think_end) if thinks else None
    calls = call_format(tokenizer)
    wanted: set[int] = set()
    names = [*(thinking or ()), *((calls.start, calls.end) if calls else ())]
    for name in names:
        if name:
            wanted.update(tokenizer.encode(name, add_special_tokens=False))
    if calls is not None:
        # What stands inside a call may be special too: separators, ends of single calls.
        wanted.update(
            token
            for name, token in vocabulary.items()
            if "tool" in name or "arg_" in name or name in _INSIDE
        )
    special = {int(t) for t, entry in tokenizer.added_tokens_decoder.items() if entry.special}
    return OutputFormat(
        thinking,
        calls,
        markers=frozenset(wanted & special),
        answer_opens=tuple(tokenizer.think_end_tokens or ()) if thinking else (),
    )
