"""What the next turn begins with after replies that think or call tools."""

from __future__ import annotations

from typing import Any

import pytest

from chat_templates import QWEN3, codec_of, tool
from mlxceld.api.conversation import Conversation
from mlxceld.api.next_turns import continuation_of
from mlxceld.api.prepare import _prepare
from mlxceld.models.continuation import Continuation
from mlxceld.models.text import TextCodec

ASKED: list[dict[str, Any]] = [{"role": "user", "content": "Hello there!"}]
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>'


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return codec_of(QWEN3, channels=False)


def continuation(codec: TextCodec, messages: list[dict[str, Any]]) -> Continuation:
    turn = Conversation(messages, tools=[tool("look")], template_kwargs={"enable_thinking": True})
    found = _prepare(codec, turn, with_boundaries=True).continuation
    assert found is not None
    return continuation_of(codec, found)


def rendered(codec: TextCodec, messages: list[dict[str, Any]]) -> list[int]:
    return codec.render_chat(
        messages, tools=[tool("look")], template_kwargs={"enable_thinking": True}
    ).tokens


def called(**more: Any) -> dict[str, Any]:
    function = {"name": "look", "arguments": '{"at": "it"}'}
    call = {"id": "abc", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call], **more}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "abc", "content": text}


def test_a_call_is_followed_by_its_result(codec: TextCodec) -> None:
    foretold = continuation(codec, ASKED).next_turn(CALL)
    after = rendered(codec, [*ASKED, called(), result("sunny")])
    assert after[: len(foretold)] == foretold
    # All but the result, what ends it, and the generation prompt.
    assert len(after) - len(foretold) < 25
    assert len(foretold) > len(rendered(codec, ASKED))


def test_thoughts_come_back_where_the_client_sent_them_before(codec: TextCodec) -> None:
    text = f"<think>\nhm\n</think>\n\n{CALL}"
    without = continuation(codec, ASKED).next_turn(text)
    assert without == continuation(codec, ASKED).next_turn(CALL)
    messages = [*ASKED, called(reasoning_content="well"), result("sunny")]
    foretold = continuation(codec, messages).next_turn(text)
    after = rendered(codec, [*messages, called(reasoning_content="hm"), result("warm")])
    assert after[: len(foretold)] == foretold


def test_a_reply_in_words_is_followed_by_the_user(codec: TextCodec) -> None:
    foretold = continuation(codec, ASKED).next_turn("<think>\nhm\n</think>\n\nRight.")
    reply = {"role": "assistant", "content": "Right."}
    after = rendered(codec, [*ASKED, reply, {"role": "user", "content": "so"}])
    assert after[: len(foretold)] == foretold
    assert len(after) - len(foretold) < 12
