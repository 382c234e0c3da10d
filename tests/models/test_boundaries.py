from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chat_templates import TEMPLATES, call, codec_of, tool
from mlxceld.models.boundaries import BoundaryFinder, common_prefix
from mlxceld.models.errors import ChatTemplateError
from mlxceld.models.text import RenderedPrompt, TextCodec

Message = dict[str, Any]

CODECS = {
    (name, words): codec_of(template.source, words=words)
    for name, template in TEMPLATES.items()
    for words in (True, False)
}

TEXTS = st.sampled_from(
    ["yes", "Right.", "\n\nSo", " no", "\tx", "1. One\n2. Two\n", "  ", "```\nx\n```", "é ü", "?\n"]
)
THOUGHTS = st.sampled_from(["", "hm", "let me see\n\nwell"])


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def reply(text: str, thought: str = "", **more: Any) -> Message:
    content = f"<think>\n{thought}\n</think>\n\n{text}" if thought else text
    return {"role": "assistant", "content": content, **more}


def result(text: str) -> Message:
    return {"role": "tool", "tool_call_id": "call00001", "name": "look", "content": text}


def length(prompt: RenderedPrompt, kind: str) -> int:
    return next((b.tokens for b in prompt.boundaries if b.kind == kind), 0)


def render(codec: TextCodec, messages: list[Message], **options: Any) -> RenderedPrompt:
    return codec.render_chat(messages, with_boundaries=True, **options)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[str, bool, list[Message], list[Message] | None]:
    """A template's name, the tokenizer, messages of several whole turns, and tools."""
    name = draw(st.sampled_from(sorted(TEMPLATES)))
    template = TEMPLATES[name]
    messages: list[Message] = []
    if template.system and draw(st.booleans()):
        messages.append({"role": "system", "content": draw(TEXTS)})
    tools = [tool("look")] if template.tools and draw(st.booleans()) else None
    for _ in range(draw(st.integers(1, 3))):
        messages.append(user(draw(TEXTS)))
        for _ in range(draw(st.integers(0, 2)) if tools else 0):
            messages.append(
                reply("", draw(THOUGHTS), tool_calls=[call("look", draw(TEXTS).strip())])
            )
            messages.append(result(draw(TEXTS)))
        messages.append(reply(draw(TEXTS), draw(THOUGHTS)))
    messages.append(user(draw(TEXTS)))
    return name, draw(st.booleans()), messages, tools


@given(conversations())
def test_every_boundary_is_a_prefix_of_a_next_turn(
    drawn: tuple[str, bool, list[Message], list[Message] | None],
) -> None:
    name, words, messages, tools = drawn
    codec = CODECS[name, words]
    for end in range(len(messages)):
        if messages[end]["role"] not in ("user", "tool"):
            continue
        prompt = render(codec, messages[: end + 1], tools=tools)
        marks = prompt.boundaries
        assert [b.tokens for b in marks] == sorted({b.tokens for b in marks})
        assert all(0 < b.tokens < len(prompt.tokens) for b in marks)
        rest = messages[end + 1 :]
        following = next((i for i, m in enumerate(rest) if m["role"] in ("user", "tool")), None)
        if following is None:
            continue
        # The turn that really follows: the user's, or the results of tools.
        upto = end + 2 + following
        after = codec.render_chat(messages[:upto], tools=tools).tokens
        kind = "completion" if rest[following]["role"] == "tool" else "boundary"
        for mark in marks:
            if mark.kind in ("head", kind):
                assert after[: mark.tokens] == prompt.tokens[: mark.tokens], (name, mark)
        if kind == "boundary":
            assert length(prompt, "boundary") or TEMPLATES[name].rewrites


@pytest.mark.parametrize("words", [True, False])
@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_the_boundary_of_a_plain_conversation_is_the_end_of_its_history(
    name: str, words: bool
) -> None:
    codec = CODECS[name, words]
    messages = [user("Hello there!"), reply("Right."), user("what is it?")]
    if TEMPLATES[name].system and name != "mistral":
        messages.insert(0, {"role": "system", "content": "You are a helpful assistant."})
    prompt = render(codec, messages)
    history = codec.render_chat(messages, add_generation_prompt=False).tokens
    end = min(common_prefix(prompt.tokens, history), len(prompt.tokens) - 1)
    # What may fuse with a reply's beginning is left out, and nothing else.
    assert end - 2 <= length(prompt, "boundary") <= end
    after = codec.render_chat([*messages, reply("\n\nyes"), user("so")]).tokens
    assert after[: length(prompt, "boundary")] == prompt.tokens[: length(prompt, "boundary")]


@pytest.mark.parametrize(
    "name", [n for n, t in TEMPLATES.items() if t.system and n not in ("mistral", "gemma3")]
)
def test_the_head_is_system_and_tools_whatever_the_user_says(name: str) -> None:
    codec = CODECS[name, True]
    tools = [tool("look"), tool("tell")] if TEMPLATES[name].tools else None
    system: Message = {"role": "system", "content": "You are a helpful assistant."}
    heads = []
    for text in ("yes", "\n\n\n so", "  no", "1"):
        prompt = render(codec, [system, user(text)], tools=tools)
        heads.append(prompt.tokens[: length(prompt, "head")])
    assert all(head == heads[0] for head in heads)
    shown = codec.decode(heads[0], skip_special_tokens=False)
    assert "You are a helpful assistant." in shown
    assert tools is None or name in ("chatml", "zephyr", "plain") or "tell" in shown
    assert "yes" not in shown
    longer = [system, user("yes"), reply("Right."), user("so")]
    prompt = render(codec, longer, tools=tools)
    assert prompt.tokens[: length(prompt, "head")] == heads[0]


@pytest.mark.parametrize("name", ["qwen3", "qwen3-thinking", "glm4"])
def test_thinking_in_a_tool_loop_ends_the_users_boundary_before_it(name: str) -> None:
    codec, tools = CODECS[name, True], [tool("look")]
    start = [user("Hello there!")]
    messages = [*start, reply("", "hm", tool_calls=[call("look", "it")]), result("sunny")]
    prompt = render(codec, messages, tools=tools)
    before = render(codec, start, tools=tools)
    turn, loop = length(prompt, "boundary"), length(prompt, "completion")
    assert length(before, "boundary") <= turn < loop
    asked = [*messages, reply("warm"), user("so")]
    after = codec.render_chat(asked, tools=tools).tokens
    assert common_prefix(after, prompt.tokens) in range(turn, loop)
    more = [*messages, reply("", "well", tool_calls=[call("look", "at")]), result("warm")]
    assert codec.render_chat(more, tools=tools).tokens[:loop] == prompt.tokens[:loop]


def test_arguments_of_the_template_are_part_of_the_prompts_end() -> None:
    codec = CODECS["qwen3", True]
    messages = [user("Hello there!")]
    plain = render(codec, messages)
    silent = render(codec, messages, template_kwargs={"enable_thinking": False})
    assert len(silent.tokens) > len(plain.tokens)
    assert length(silent, "boundary") == length(plain, "boundary")


def test_a_continued_answer_has_its_boundary_where_it_begins() -> None:
    for name in ("chatml", "llama3", "qwen3"):
        codec = CODECS[name, True]
        asked = [user("Hello there!")]
        prompt = render(
            codec,
            [*asked, reply("Right, so")],
            add_generation_prompt=False,
            continue_final_message=True,
        )
        assert length(prompt, "boundary") == length(render(codec, asked), "boundary")


@pytest.mark.parametrize("words", [True, False])
@pytest.mark.parametrize("name", sorted(TEMPLATES))
@pytest.mark.parametrize("said", ["yes", "\n\n no", "1. One"])
def test_the_next_turn_begins_as_foretold(name: str, words: bool, said: str) -> None:
    codec = CODECS[name, words]
    history = [user("Hello there!"), reply("warm", "hm")]
    foretold = codec.next_turn(history)
    after = codec.render_chat([*history, user(said)]).tokens
    assert after[: len(foretold)] == foretold
    if name != "mistral":
        # All but what the user says, the header before it and the generation prompt.
        alone = codec.render_chat([user(said)]).tokens
        assert len(after) - len(foretold) <= len(alone) + 8


def test_after_a_tool_call_the_next_turn_is_its_result() -> None:
    for name, template in TEMPLATES.items():
        if not template.tools:
            continue
        codec, tools = CODECS[name, True], [tool("look")]
        history = [user("Hello there!"), reply("", "hm", tool_calls=[call("look", "it")])]
        foretold = codec.next_turn(history, tools=tools)
        after = codec.render_chat([*history, result("sunny")], tools=tools).tokens
        assert after[: len(foretold)] == foretold
        prompt = render(codec, history[:1], tools=tools)
        assert len(foretold) >= length(prompt, "boundary") > 0


def test_a_template_that_gives_none_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    codec = codec_of(
        "{% if messages | length > 1 %}{{ raise_exception('one question only') }}{% endif %}"
        "{{ messages[0].content }}"
    )
    with caplog.at_level(logging.INFO, "mlxceld.models.boundaries"):
        for _ in range(3):
            assert length(render(codec, [user("Hello there!")]), "boundary") == 0
    assert [record.getMessage() for record in caplog.records] == [
        "chat template: no boundary before the reply: one question only"
    ]
    assert codec.next_turn([user("Hello there!"), reply("Right.")]) == []


def test_a_prompt_costs_one_more_rendering() -> None:
    seen: list[int] = []

    def count(messages: Any, **options: Any) -> list[int]:
        seen.append(len(messages))
        codec = CODECS["qwen3", True]
        return codec.render_chat(messages, **options).tokens

    finder = BoundaryFinder(count)
    messages = [user("Hello there!"), reply("Right.")] * 8 + [user("so")]
    prompt = CODECS["qwen3", True].render_chat(messages).tokens
    first = finder.find(messages, prompt).marks
    assert [n for n in seen if n >= len(messages)] == [len(messages) + 2]
    seen.clear()
    assert finder.find(messages, prompt).marks == first
    assert seen == [len(messages) + 2]


def test_common_prefixes() -> None:
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2, 3], [1, 2, 3, 4]) == 3
    for at in range(20):
        one = list(range(20))
        other = [*one[:at], -1, *one[at + 1 :]]
        assert common_prefix(one, other) == at


def test_a_refusal_of_the_prompt_itself_is_the_callers(caplog: pytest.LogCaptureFixture) -> None:
    codec = codec_of("{{ raise_exception('Not today') }}")
    with pytest.raises(ChatTemplateError, match="Not today"):
        render(codec, [user("y")])
