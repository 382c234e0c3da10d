"""Answers that go on with what the prompt has begun, read from the state that it ends in."""

from __future__ import annotations

from typing import Any

import pytest

from chat_templates import GPT_OSS, QWEN3, codec_of
from mlxceld.api.conversation import Conversation
from mlxceld.api.parts import Answer
from mlxceld.api.prepare import Prepared, _prepare
from mlxceld.engine.constraint import make_constraint
from mlxceld.models.text import TextCodec

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture(scope="module")
def channels() -> TextCodec:
    return codec_of(GPT_OSS)


@pytest.fixture(scope="module")
def marked() -> TextCodec:
    return codec_of(QWEN3, channels=False)


def prepared(codec: TextCodec, *contents: str, **more: Any) -> Prepared:
    roles = ("user", "assistant")
    messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
    continued = len(contents) == 2
    turn = Conversation(messages, continued=continued, generation_prompt=not continued, **more)
    return _prepare(codec, turn, with_boundaries=False)


def answered(ready: Prepared, text: str) -> Answer:
    whole = ready.reader(lambda: "call_1")
    answer = Answer.of([*whole.push(text), *whole.finish()])
    pieces = ready.reader(lambda: "call_1")
    parts = [part for character in text for part in pieces.push(character)]
    assert Answer.of([*parts, *pieces.finish()]) == answer
    return answer


def test_an_answer_of_channels_goes_on(channels: TextCodec) -> None:
    assert answered(prepared(channels, "hi", "The answer is "), "42.").text == "42."


@pytest.mark.parametrize("said", ["see <|start|>y <|end|> z ", "a <|message|> b "])
def test_names_of_control_tokens_in_a_text_are_text(channels: TextCodec, said: str) -> None:
    ready = prepared(channels, "what is <|start|>?", said)
    assert ready.reading.opened == "assistant<|channel|>final<|message|>"
    assert answered(ready, "and so on").text == "and so on"


def test_a_message_of_the_user_leaves_the_answers_head_open(channels: TextCodec) -> None:
    assert prepared(channels, "what is <|start|>final<|message|>?").reading.opened == "assistant"


def test_a_schema_holds_at_once_where_the_answer_is_open(channels: TextCodec) -> None:
    ready = prepared(channels, "hi", "Here: ", schema=SCHEMA)
    assert ready.constraint is not None
    first = channels.encode("<|channel|>", add_special_tokens=False)[0]
    assert not make_constraint(channels, ready.constraint).mask()[first // 8] >> first % 8 & 1
    before = prepared(channels, "hi", schema=SCHEMA)
    assert before.constraint is not None
    assert make_constraint(channels, before.constraint).mask()[first // 8] >> first % 8 & 1


def test_reasoning_that_the_client_has_opened_goes_on(marked: TextCodec) -> None:
    answer = answered(prepared(marked, "hi", "<think>\nI wonder"), " why.\n</think>\n\nBecause.")
    assert (answer.reasoning, answer.text) == (" why.", "Because.")


@pytest.mark.parametrize("said", ["The tag is", "<think>\nhm\n</think>\n\nThe tag is"])
def test_a_tag_in_text_that_has_begun_is_text(marked: TextCodec, said: str) -> None:
    answer = answered(prepared(marked, "hi", said), "<think> and </think>.")
    assert (answer.reasoning, answer.text) == ("", "<think> and </think>.")
