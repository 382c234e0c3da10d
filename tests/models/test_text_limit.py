"""What a text is at least, in tokens."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mlxceld.models.text import TextCodec
from mlxceld.models.text_limit import TextLimit, conversation_texts


@given(text=st.text(max_size=200))
def test_no_text_has_fewer_tokens(codec_for_texts: TextCodec, text: str) -> None:
    tokens = len(codec_for_texts.encode(text, add_special_tokens=False))
    assert codec_for_texts.least_tokens([text]) <= tokens
    assert len(text.encode()) <= codec_for_texts.text_limit(tokens)


def test_the_bound_of_a_tokenizer() -> None:
    exact, loose = TextLimit(10), TextLimit(10, shrinks=True)
    assert (exact.bytes_within(7), loose.bytes_within(7)) == (70, 280)
    assert [exact.least_tokens(["x" * n]) for n in (0, 1, 10, 11)] == [0, 1, 1, 2]
    assert loose.least_tokens(["x" * 41, "y" * 40]) == 3


def test_all_that_a_rendering_repeats_counts() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "reasoning_content": "c"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "d", "arguments": {"e": "f"}}}]},
    ]
    tools = [{"function": {"name": "g", "parameters": {"properties": {"h": {"enum": ["i"]}}}}}]
    found = "".join(conversation_texts(messages, tools))
    assert set("abcdfgi") <= set(found)
