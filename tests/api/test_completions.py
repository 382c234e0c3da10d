"""Completions and tokenization over the real engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from api_harness import error_of, open_api, read_sse, streamed_text
from mlxceld.api.openai.logprobs import CompletionLogprobs
from mlxceld.config import Settings
from mlxceld.engine.engine import Engine
from mlxceld.engine.events import TokenLogprob

MakeSettings = Callable[..., Settings]
COMPLETIONS = "/v1/completions"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}


async def _ask(client: Any, **fields: Any) -> dict[str, Any]:
    response = await client.post(COMPLETIONS, json={**GREEDY, **fields})
    assert response.status == 200, await response.text()
    body: dict[str, Any] = await response.json()
    return body


async def test_every_form_of_a_prompt_gives_the_same_answer(
    engine: Engine, settings: MakeSettings
) -> None:
    async with open_api(engine, settings()) as client:
        text = await _ask(client, prompt="abcdef")
        tokens = await _ask(client, prompt=list(b"abcdef"))
        texts = await _ask(client, prompt=["xyz", "abcdef"])
        lists = await _ask(client, prompt=[list(b"xyz"), list(b"abcdef")])
        streamed = await read_sse(
            await client.post(
                COMPLETIONS, json={**GREEDY, "prompt": ["xyz", "abcdef"], "stream": True}
            )
        )
    answer = text["choices"][0]["text"]
    assert text["id"] == "cmpl-id1"
    assert (text["object"], text["model"]) == ("text_completion", "llama")
    assert text["usage"]["prompt_tokens"] == 6
    assert text["usage"]["completion_tokens"] == 6
    assert tokens["choices"] == text["choices"]
    assert [choice["index"] for choice in texts["choices"]] == [0, 1]
    assert texts["choices"] == lists["choices"]
    assert texts["choices"][1]["text"] == answer
    assert texts["usage"]["prompt_tokens"] == 9
    assert [streamed_text(streamed, i) for i in (0, 1)] == [c["text"] for c in texts["choices"]]
    ends = [c["choices"][0] for c in streamed[:-1] if c["choices"][0]["finish_reason"]]
    assert sorted((end["index"], end["finish_reason"]) for end in ends) == [
        (0, "length"),
        (1, "length"),
    ]


async def test_choices_of_several_prompts_are_numbered_prompt_by_prompt(
    engine: Engine, settings: MakeSettings
) -> None:
    warm = {"temperature": 1.0, "seed": 3}
    async with open_api(engine, settings()) as client:
        body = await _ask(client, prompt=["ab", "cd"], n=2, best_of=2, **warm)
        alone = [
            (await _ask(client, prompt=prompt, **{**warm, "seed": seed}))["choices"][0]["text"]
            for prompt in ("ab", "cd")
            for seed in (3, 4)
        ]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in body["choices"]] == alone
    assert body["usage"]["prompt_tokens"] == 4
    assert body["usage"]["completion_tokens"] == 24


async def test_a_prompt_that_was_answered_continues_with_its_answer(
    engine: Engine, settings: MakeSettings
) -> None:
    async with open_api(engine, settings()) as client:
        prompt = list(b"The prompt of a longer story, told twice")
        long = await _ask(client, prompt=prompt, max_tokens=8, logit_bias={"107": 100})
        assert long["choices"][0]["text"] == "k" * 8
        again = await _ask(client, prompt=[*prompt, *b"kkkk"], logit_bias={"107": 100})
        assert again["choices"][0]["text"] == "k" * 6


async def test_sixteen_tokens_unless_said_otherwise(engine: Engine, settings: MakeSettings) -> None:
    async with open_api(engine, settings()) as client:
        body = await _ask(client, prompt="ab", max_tokens=None)
        assert body["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        (["ok", ""], "the prompt is empty"),
        ([320], "token id 320 is not in the vocabulary; valid ids are 0 to 319"),
        ([-1], "token id -1 is not in the vocabulary"),
        ([[1], [10**30]], "is not in the vocabulary"),
    ],
)
async def test_prompts_that_the_model_cannot_take(
    engine: Engine, settings: MakeSettings, prompt: Any, message: str
) -> None:
    async with open_api(engine, settings()) as client:
        error = await error_of(await client.post(COMPLETIONS, json={"prompt": prompt}), 400)
        assert error["param"] == "prompt"
        assert message in error["message"]


async def test_a_prompt_too_long_is_refused_with_both_numbers(
    engine: Engine, settings: MakeSettings
) -> None:
    async with open_api(engine, settings()) as client:
        error = await error_of(await client.post(COMPLETIONS, json={"prompt": "x" * 512}), 400)
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert "512 tokens" in error["message"]


async def test_logprobs_are_parallel_lists_that_a_stream_continues(
    engine: Engine, settings: MakeSettings
) -> None:
    async with open_api(engine, settings()) as client:
        body = await _ask(client, prompt="ab", logprobs=2, temperature=1.0, seed=11)
        chunks = await read_sse(
            await client.post(
                COMPLETIONS,
                json={
                    **GREEDY,
                    "prompt": "ab",
                    "logprobs": 2,
                    "temperature": 1.0,
                    "seed": 11,
                    "stream": True,
                },
            )
        )
        none = await _ask(client, prompt="ab")
    lists = body["choices"][0]["logprobs"]
    assert list(lists) == ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
    assert {len(values) for values in lists.values()} == {6}
    for token, value, top in zip(
        lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True
    ):
        assert top[token] == value
        assert 2 <= len(top) <= 3
    told: dict[str, list[Any]] = {name: [] for name in lists}
    for chunk in chunks[:-1]:
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            told[name].extend(values)
    assert told["tokens"] == lists["tokens"]
    assert told["text_offset"] == lists["text_offset"]
    assert none["choices"][0]["logprobs"] is None


def test_offsets_count_characters_and_parts_of_them_have_names() -> None:
    def token(raw: bytes) -> TokenLogprob:
        return TokenLogprob(0, raw.decode("utf-8", "replace"), raw, -1.0)

    lists = CompletionLogprobs()
    first = lists.take([token(b"a"), token("é".encode()[:1])])
    second = lists.take([token("é".encode()[1:]), token("日本".encode()), token(b"!")])
    assert first["tokens"] == ["a", "bytes:\\xc3"]
    assert second["tokens"] == ["bytes:\\xa9", "日本", "!"]
    assert first["text_offset"] + second["text_offset"] == [0, 1, 1, 2, 4]


async def test_text_becomes_tokens_and_back(engine: Engine, settings: MakeSettings) -> None:
    async with open_api(engine, settings()) as client:

        async def tokens(**body: Any) -> list[int]:
            answer = await (await client.post("/tokenize", json=body)).json()
            assert answer["count"] == len(answer["tokens"])
            found: list[int] = answer["tokens"]
            return found

        assert await tokens(content="é!") == [0xC3, 0xA9, 0x21]
        assert await tokens(prompt="é!", add_special=True) == [0xC3, 0xA9, 0x21]
        assert await tokens(content="") == []
        answer = await client.post("/detokenize", json={"tokens": [0xC3, 0xA9, 257]})
        assert await answer.json() == {"content": "é<|im_start|>"}
        assert await (await client.post("/detokenize", json={"tokens": []})).json() == {
            "content": ""
        }


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("/tokenize", {}, "content", "content is missing"),
        ("/tokenize", {"content": 5}, "content", "expected a string"),
        ("/tokenize", {"content": "a", "add_special": "no"}, "add_special", "true or false"),
        ("/detokenize", {"tokens": "abc"}, "tokens", "expected a list"),
        ("/detokenize", {"tokens": [1, "a"]}, "tokens[1]", "expected a whole number"),
        ("/detokenize", {"tokens": [1, 320]}, "tokens[1]", "a token id from 0 to 319"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]", "tokens[0] is -1, expected a token id"),
    ],
)
async def test_bad_tokenize_fields_are_named(
    engine: Engine, settings: MakeSettings, path: str, body: Any, param: str, message: str
) -> None:
    async with open_api(engine, settings()) as client:
        error = await error_of(await client.post(path, json=body), 400)
        assert error["param"] == param
        assert message in error["message"]
