from __future__ import annotations

from typing import Any

import pytest

from chat_templates import TEMPLATES, codec_of
from mlxceld.models.continuation import Continuation
from mlxceld.models.text import TextCodec

HISTORY: list[dict[str, Any]] = [{"role": "user", "content": "Hello there!"}]


def of(codec: Any, prompt: Any, messages: Any, **more: Any) -> Continuation:
    return Continuation(
        codec,
        messages,
        prompt_tokens=len(prompt.tokens),
        repeated_tokens=prompt.repeated,
        **more,
    )


def ask(codec: TextCodec, messages: list[dict[str, Any]], **options: Any) -> Continuation:
    continues = options.get("continue_final_message", False)
    prompt = codec.render_chat(messages, with_boundaries=True, **options)
    return of(codec, prompt, messages, continues=continues)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_a_completion_is_kept_exactly_if_the_next_turn_begins_with_it(name: str) -> None:
    codec = codec_of(TEMPLATES[name].source)
    prompt = codec.render_chat(HISTORY, with_boundaries=True)
    continuation = of(codec, prompt, HISTORY)
    for text in ("Right.", "\n\nSo what", "<think>\nhm\n</think>\n\nyes", " "):
        fed = [*prompt.tokens, *codec.encode(text, add_special_tokens=False)]
        reply = {"role": "assistant", "content": text}
        after = codec.render_chat([*HISTORY, reply, {"role": "user", "content": "so"}]).tokens
        begins = after[: len(fed)] == fed
        if prompt.repeated == len(prompt.tokens):
            assert (continuation.keeps(fed) >= len(fed)) == begins
        else:
            # The prompt's end fuses with what most replies begin with: none is rendered to know.
            assert continuation.keeps(fed) == prompt.repeated < len(fed)


def test_chatml_keeps_replies_and_thinking_templates_do_not() -> None:
    for name, expected in (("chatml", True), ("qwen3-thinking", False), ("deepseek-r1", False)):
        codec = codec_of(TEMPLATES[name].source)
        prompt = codec.render_chat(HISTORY, with_boundaries=True)
        fed = [*prompt.tokens, *codec.encode("Right.", add_special_tokens=False)]
        assert (of(codec, prompt, HISTORY).keeps(fed) == len(fed)) is expected


def test_the_reply_as_it_was_shown_goes_before_what_the_tokens_say() -> None:
    codec = codec_of(TEMPLATES["chatml"].source)
    prompt = codec.render_chat(HISTORY, with_boundaries=True)
    # The last token of a reply that reached its limit was never fed.
    reply = codec.encode("Right. And more", add_special_tokens=False)
    continuation = of(codec, prompt, HISTORY)
    continuation.note_reply("Right. And more")
    assert continuation.keeps([*prompt.tokens, *reply[:-1]]) == len(prompt.tokens) + len(reply) - 1
    continuation.note_reply("No")
    assert continuation.keeps([*prompt.tokens, *reply]) == len(prompt.tokens)


def test_a_continued_reply_is_one_with_its_beginning() -> None:
    codec = codec_of(TEMPLATES["chatml"].source)
    begun = [*HISTORY, {"role": "assistant", "content": "Right,"}]
    continued = ask(codec, begun, add_generation_prompt=False, continue_final_message=True)
    assert continued.next_turn(" so") == ask(codec, HISTORY).next_turn("Right, so")


def test_the_reply_is_read_as_a_client_will_send_it() -> None:
    codec = codec_of(TEMPLATES["chatml"].source)
    prompt = codec.render_chat(HISTORY, with_boundaries=True)
    seen: list[str] = []

    def read(text: str) -> dict[str, Any]:
        seen.append(text)
        return {"role": "assistant", "content": text.upper()}

    continuation = of(codec, prompt, HISTORY, read_reply=read)
    expected = ask(codec, HISTORY).next_turn("YES")
    assert continuation.next_turn("yes") == expected
    assert continuation.next_turn("yes") == expected
    assert seen == ["yes"]


def test_what_cannot_be_rendered_is_nothing() -> None:
    codec = codec_of(
        "{% if messages | length > 1 %}{{ raise_exception('one question only') }}{% endif %}"
        "{{ messages[0].content }}"
    )
    continuation = ask(codec, HISTORY)
    assert continuation.next_turn("yes") == []
    # A completion may be of use then: nobody can tell.
    prompt = codec.render_chat(HISTORY, with_boundaries=True)
    assert [mark.kind for mark in prompt.boundaries] in ([], ["head"])
    fed = [*prompt.tokens, *codec.encode("yes", add_special_tokens=False)]
    assert continuation.keeps(fed) == len(fed)
