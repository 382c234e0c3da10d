"""Every bad field gets a 400 that names it, what it is, and what was expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from api_harness import ScriptedEngine, error_of, open_api
from mlxceld.config import Settings

MakeSettings = Callable[..., Settings]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}

SHARED: list[tuple[dict[str, Any], str, str]] = [
    ({"model": 5}, "model", "model is 5, expected a string"),
    ({"temperature": "1"}, "temperature", 'temperature is "1", expected a number'),
    ({"temperature": -0.1}, "temperature", "expected a number from 0 to 2"),
    ({"temperature": 2.01}, "temperature", "expected a number from 0 to 2"),
    ({"temperature": True}, "temperature", "temperature is true, expected a number"),
    ({"temperature": 10**400}, "temperature", "expected a number"),
    ({"top_p": 0}, "top_p", "top_p is 0, expected a number above 0, up to 1"),
    ({"top_p": 1.1}, "top_p", "expected a number above 0, up to 1"),
    ({"top_k": -2}, "top_k", "top_k is -2, expected a whole number from -1"),
    ({"top_k": 1.5}, "top_k", "top_k is 1.5, expected a whole number"),
    ({"min_p": 1.1}, "min_p", "expected a number from 0 to 1"),
    ({"repetition_penalty": 0}, "repetition_penalty", "expected a number above 0"),
    ({"presence_penalty": 2.1}, "presence_penalty", "expected a number from -2 to 2"),
    ({"frequency_penalty": -2.1}, "frequency_penalty", "expected a number from -2 to 2"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1", "logit_bias.1 is 101, expected a number from"),
    ({"logit_bias": {"one": 1}}, "logit_bias", "whose keys are token ids"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "whose keys are token ids"),
    ({"logit_bias": [1]}, "logit_bias", "logit_bias is a list, expected an object"),
    ({"seed": "x"}, "seed", "expected a whole number"),
    ({"seed": 1.0}, "seed", "expected a whole number"),
    ({"max_tokens": 0}, "max_tokens", "max_tokens is 0, expected a whole number from 1"),
    ({"max_tokens": -1}, "max_tokens", "expected a whole number from 1"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "expected a whole number from 1"),
    ({"stop": [1]}, "stop[0]", "stop[0] is 1, expected a string"),
    ({"stop": 1}, "stop", "expected a string or a list of up to 16 strings"),
    ({"stop": ""}, "stop", "expected text that is not empty"),
    ({"stop": ["x"] * 17}, "stop", "expected at most 16 elements"),
    ({"n": 0}, "n", "expected a whole number from 1 to 16"),
    ({"n": 17}, "n", "expected a whole number from 1 to 16"),
    ({"ignore_eos": 1}, "ignore_eos", "ignore_eos is 1, expected true or false"),
    ({"stream": "yes"}, "stream", "expected true or false"),
    ({"stream_options": 1}, "stream_options", "stream_options is 1, expected an object"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "true or false"),
    ({"user": 5}, "user", "expected a string"),
    ({"prompt_cache_key": ["x"]}, "prompt_cache_key", "expected a string"),
    ({"extra_body": {"user": 1}}, "extra_body.user", "expected a string"),
]

CHAT_ONLY: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": None}, "messages", "messages is null, expected a list"),
    ({"messages": []}, "messages", "messages is an empty list, expected at least 1 element"),
    ({"messages": "hi"}, "messages", "expected a list"),
    ({"messages": ["hi"]}, "messages[0]", 'messages[0] is "hi", expected an object'),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "messages[0].role is missing"),
    ({"messages": [{**USER, "role": "boss"}]}, "messages[0].role", "expected 'system', 'developer"),
    ({"messages": [USER, {"role": "user"}]}, "messages[1].content", "is missing, expected text"),
    ({"messages": [{"role": "assistant"}]}, "messages[0].content", "is missing, expected text"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "a list of text parts"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
        "is missing",
    ),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, {"type": "image_url"}],
                }
            ]
        },
        "messages[0].content[1].type",
        "messages[0].content[1].type is \"image_url\", expected 'text'",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
        "messages[0].tool_calls[0].function.name",
        "is missing",
    ),
    ({"logprobs": 1}, "logprobs", "logprobs is 1, expected true or false"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "a whole number from 0 to 20"),
    ({"top_logprobs": 2}, "top_logprobs", "logprobs is not true"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "expected 'function'"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "is missing"),
    ({"tools": [TOOL, {**TOOL, "function": {"name": ""}}]}, "tools[1].function.name", "not empty"),
    ({"tool_choice": "some"}, "tool_choice", "expected 'none', 'auto' or 'required'"),
    ({"tool_choice": 1}, "tool_choice", "or an object that names tools"),
    ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "find"}}},
        "tool_choice",
        '"find", which is not among tools',
    ),
    ({"response_format": {"type": "yaml"}}, "response_format.type", "'json_schema'"),
    ({"response_format": {}}, "response_format.type", "is missing"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs", "expected an object"),
    (
        {"chat_template_kwargs": {"self": 1}},
        "chat_template_kwargs",
        "self is set by the server: the name is reserved",
    ),
    (
        {"chat_template_kwargs": {"context": 1}},
        "chat_template_kwargs",
        "context is set by the server: the name is reserved",
    ),
    (
        {"chat_template_kwargs": {"environment": 1}},
        "chat_template_kwargs",
        "environment is set by the server: the name is reserved",
    ),
    (
        {"chat_template_kwargs": {"conversations": 1}},
        "chat_template_kwargs",
        "conversations is set by the server: the name is reserved",
    ),
    (
        {"chat_template_kwargs": {"kwargs": 1}},
        "chat_template_kwargs",
        "kwargs is set by the server: the name is reserved",
    ),
    (
        {"chat_template_kwargs": {"raise_exception": 1}},
        "chat_template_kwargs",
        "raise_exception is set by the server: the name is reserved",
    ),
    ({"chat_template_kwargs": {"tokenize": 1}}, "chat_template_kwargs", "set by the server"),
    ({"continue_final_message": True}, "continue_final_message", "not the assistant's"),
    (
        {"continue_final_message": True, "add_generation_prompt": True},
        "continue_final_message",
        "both true",
    ),
]

COMPLETIONS_ONLY: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": None}, "prompt", "prompt is null, expected a string, a list of strings"),
    ({"prompt": []}, "prompt", "prompt is an empty list, expected a string"),
    ({"prompt": {}}, "prompt", "prompt is an object"),
    ({"prompt": ["a", 1]}, "prompt[1]", "prompt[1] is 1, expected a string"),
    ({"prompt": [1, "a"]}, "prompt[1]", 'prompt[1] is "a", expected a whole number'),
    ({"prompt": [1, True]}, "prompt[1]", "expected a whole number"),
    ({"prompt": [[1], []]}, "prompt[1]", "prompt[1] is an empty list, expected at least 1"),
    ({"prompt": ["x"] * 73}, "prompt", "asks for 73 choices at once; this server takes up to 72"),
    ({"logprobs": 21}, "logprobs", "expected a whole number from 0 to 20"),
    ({"logprobs": True}, "logprobs", "expected a whole number"),
    ({"echo": True}, "echo", "echoing the prompt is not supported"),
    ({"suffix": "end"}, "suffix", "insertion is not supported"),
    ({"n": 2, "best_of": 3}, "best_of", "best_of is 3, expected the value of n, 2"),
]


@pytest.mark.parametrize(
    ("path", "good", "cases"),
    [
        (CHAT, {"messages": [USER]}, [*SHARED, *CHAT_ONLY]),
        (COMPLETIONS, {"prompt": "hi"}, [*SHARED, *COMPLETIONS_ONLY]),
    ],
)
async def test_a_bad_field_is_named(
    scripted: ScriptedEngine,
    settings: MakeSettings,
    path: str,
    good: dict[str, Any],
    cases: list[tuple[dict[str, Any], str, str]],
) -> None:
    async with open_api(scripted, settings()) as client:
        for bad, param, message in cases:
            error = await error_of(await client.post(path, json={**good, **bad}), 400)
            assert error["param"] == param, (bad, error)
            assert message in error["message"], (bad, error)
            assert error["type"] == "invalid_request_error"
    assert not scripted.requests


@pytest.mark.parametrize(
    ("path", "missing"), [(CHAT, "messages"), (COMPLETIONS, "prompt"), ("/detokenize", "tokens")]
)
async def test_a_missing_field_is_named(
    scripted: ScriptedEngine, settings: MakeSettings, path: str, missing: str
) -> None:
    async with open_api(scripted, settings()) as client:
        error = await error_of(await client.post(path, json={}), 400)
        assert (error["param"], error["code"]) == (missing, "missing_required_parameter")
        assert error["message"] == f"{missing} is missing"


async def test_a_long_key_does_not_make_a_long_error(
    scripted: ScriptedEngine, settings: MakeSettings
) -> None:
    async with open_api(scripted, settings()) as client:
        body = {"messages": [USER], "logit_bias": {"9" * 100_000: "x"}}
        error = await error_of(await client.post(CHAT, json=body), 400)
        assert len(error["param"]) == 200
        assert len(error["message"]) < 400
