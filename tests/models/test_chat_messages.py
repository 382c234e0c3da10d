from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from mlxceld.models.chat import prepare
from mlxceld.models.errors import ChatTemplateError
from mlxceld.models.text import TextCodec
from tiny_models import DEFAULT_TEMPLATE

MakeCodec = Callable[..., TextCodec]

SMOLLM_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def prepared(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return prepare(messages).messages


def test_developer_becomes_system_unless_the_template_knows_it(make_codec: MakeCodec) -> None:
    messages = [{"role": "developer", "content": "x"}, {"role": "user", "content": "y"}]
    assert "<|im_start|>system\nx" in make_codec(DEFAULT_TEMPLATE).render_chat(messages).text
    knows = DEFAULT_TEMPLATE + "{#- takes developer messages #}"
    assert "<|im_start|>developer\nx" in make_codec(knows).render_chat(messages).text


def test_content_becomes_text() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"type": "input_text", "text": "c"}]
    messages = prepared(
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None},
        {"role": "assistant"},
    )
    assert [message["content"] for message in messages] == ["a\nb\nc", "", ""]


def test_tool_call_arguments_become_objects() -> None:
    def call(arguments: Any) -> dict[str, Any]:
        return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}

    given = ['{"x": [1]}', "", "not json", "[1]", {"y": 2}]
    (message,) = prepared({"role": "assistant", "tool_calls": [call(text) for text in given]})
    found = [made["function"]["arguments"] for made in message["tool_calls"]]
    assert found == [{"x": [1]}, {}, "not json", "[1]", {"y": 2}]


def test_a_template_that_joins_arguments_to_text_gets_text(make_codec: MakeCodec) -> None:
    template = (
        "{% for m in messages %}{{ m['role'] + ':' + m['content'] }}"
        "{% for call in m['tool_calls'] or [] %}"
        "{{ call['function']['name'] + '(' + call['function']['arguments'] + ')' }}"
        "{% endfor %}{{ '\n' }}{% endfor %}{% for tool in tools or [] %}{{ tool }}{% endfor %}"
    )
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    codec = make_codec(template)
    assert codec.render_chat(messages, add_generation_prompt=False).text == (
        'assistant:f({"x": 1})\n'
    )


def test_the_given_messages_are_left_alone() -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
        },
    ]
    before = copy.deepcopy(messages)
    prepare(messages)
    assert messages == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"type": "image_url", "image_url": {}}], r"messages\[0\]\.content\[0\] .*'image_url'"),
        ([{"type": "text", "text": 5}], r"content\[0\] is of type 'text'"),
        ([7], r"of type 'int'"),
        (7, r"messages\[0\]\.content is int"),
    ],
)
def test_other_content_is_named(content: Any, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        prepared({"role": "user", "content": content})


def test_renders_as_text_and_as_tokens(make_codec: MakeCodec) -> None:
    codec = make_codec(DEFAULT_TEMPLATE)
    rendered = codec.render_chat([{"role": "user", "content": "hi"}])
    assert rendered.text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert rendered.tokens[0] == 257
    assert codec.decode(rendered.tokens, skip_special_tokens=False) == rendered.text
    history = codec.render_chat([{"role": "user", "content": "hi"}], add_generation_prompt=False)
    assert rendered.tokens[: len(history.tokens)] == history.tokens


def test_an_answer_can_be_continued(make_codec: MakeCodec) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well,"}]
    rendered = make_codec(DEFAULT_TEMPLATE).render_chat(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert rendered.text.endswith("<|im_start|>assistant\nWell,")


def test_tools_and_arguments_reach_the_template(make_codec: MakeCodec) -> None:
    template = "{{ tools[0].function.name }} {{ style }}"
    rendered = make_codec(template).render_chat(
        [{"role": "user", "content": "hi"}],
        tools=[{"type": "function", "function": {"name": "look"}}],
        template_kwargs={"style": "short"},
    )
    assert rendered.text == "look short"


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def test_a_template_that_knows_no_tools_gets_them_in_words(make_codec: MakeCodec) -> None:
    messages = [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "look", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
    ]
    rendered = make_codec(SMOLLM_TEMPLATE).render_chat(messages, tools=[TOOL])
    system, asked, called, answered, opened = rendered.text.split("<|im_start|>")[1:]
    assert system.startswith("system\n# Tools")
    assert json.dumps(TOOL) in system
    assert asked == "user\nweather?<|im_end|>\n"
    call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    assert called == f"assistant\n{call}<|im_end|>\n"
    assert answered == "user\n<tool_response>\nrain\n</tool_response><|im_end|>\n"
    assert opened == "assistant\n"

    messages.insert(0, {"role": "system", "content": "Be brief."})
    again = make_codec(SMOLLM_TEMPLATE).render_chat(messages, tools=[TOOL])
    assert again.text.startswith("<|im_start|>system\nBe brief.\n\n# Tools")


def test_a_refusal_is_told_in_the_templates_own_words(make_codec: MakeCodec) -> None:
    codec = make_codec("{{ raise_exception('Roles must alternate user/assistant') }}")
    with pytest.raises(ChatTemplateError, match=r"^Roles must alternate user/assistant$"):
        codec.render_chat([{"role": "user", "content": "hi"}])


def test_a_faulty_template_is_told_as_such(make_codec: MakeCodec) -> None:
    codec = make_codec("{{ messages[0]['content'] + 1 }}")
    with pytest.raises(ChatTemplateError, match="chat template failed: TypeError"):
        codec.render_chat([{"role": "user", "content": "hi"}])


def test_a_model_without_a_template_says_so(make_codec: MakeCodec) -> None:
    codec = make_codec(None)
    assert not codec.has_chat_template
    with pytest.raises(ChatTemplateError, match=r"no chat template; use /v1/completions"):
        codec.render_chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("name", ["tokenize", "tools", "chat_template", "conversation"])
def test_the_renderers_own_arguments_cannot_be_given(make_codec: MakeCodec, name: str) -> None:
    codec = make_codec(DEFAULT_TEMPLATE)
    with pytest.raises(ChatTemplateError, match=rf"chat_template_kwargs\.{name} is set by"):
        codec.render_chat([{"role": "user", "content": "hi"}], template_kwargs={name: True})


def test_the_signature_depends_on_the_template(make_codec: MakeCodec) -> None:
    one = make_codec(DEFAULT_TEMPLATE).template_signature()
    assert one == make_codec(DEFAULT_TEMPLATE).template_signature(tools=[])
    assert one != make_codec(SMOLLM_TEMPLATE).template_signature()


@pytest.mark.parametrize("given", [{}, {"arguments": None}, {"arguments": ""}, {"arguments": {}}])
def test_absent_arguments_are_an_empty_object(given: dict[str, Any]) -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", **given}}]
    (message,) = prepared({"role": "assistant", "tool_calls": calls})
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}


def test_calls_results_and_refusals_in_other_forms() -> None:
    messages = prepared(
        {"role": "assistant", "tool_calls": [{"id": "1", "name": "f", "arguments": "{}"}]},
        {"role": "function", "name": "f", "content": None},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}, {"text": "x"}]},
    )
    assert messages[0]["tool_calls"] == [{"id": "1", "function": {"name": "f", "arguments": {}}}]
    assert messages[1] == {"role": "tool", "name": "f", "content": ""}
    assert messages[2]["content"] == "No.\nx"


@pytest.mark.parametrize("call", ["f", {"id": "1"}, {"function": "f"}])
def test_a_call_without_a_function_is_named(call: Any) -> None:
    with pytest.raises(ChatTemplateError, match=r"messages\[0\]\.tool_calls\[0\] has no function"):
        prepared({"role": "assistant", "tool_calls": [call]})
