"""Rows whose next token depends on what came before it, beside rows that are free."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from engine_harness import CoreHarness, Result, random_prompt
from mlxceld.engine.events import Failed, FinishReason
from mlxceld.models.loading import LoadedModel

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 999}, "ok": {"enum": [True]}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}


class Rising:
    """Allows only tokens above the last one."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.taken: list[int] = []

    def mask(self) -> bytes:
        lowest = self.taken[-1] + 1 if self.taken else 0
        bits = bytearray((self.vocab_size + 7) // 8)
        for token in range(lowest, self.vocab_size):
            bits[token // 8] |= 1 << token % 8
        return bytes(bits)

    def accept(self, token: int) -> None:
        self.taken.append(token)


@pytest.fixture
def llama(tiny_model: Callable[..., Any]) -> LoadedModel:
    model: LoadedModel = tiny_model("llama")
    return model


async def run(harness: CoreHarness, *ids: str) -> list[Result]:
    await harness.run()
    return [harness.results[name] for name in ids]


async def test_every_token_is_allowed_by_the_one_before(llama: LoadedModel) -> None:
    harness = CoreHarness(llama)
    rule = Rising(llama.text.vocab_size)
    name = harness.submit(
        random_prompt(1, 20), constraint=rule, max_tokens=6, temperature=1.0, ignore_eos=True
    )
    (result,) = await run(harness, name)
    assert len(rule.taken) == 6
    assert rule.taken == sorted(set(rule.taken))
    assert result.reason is FinishReason.LENGTH


async def test_free_rows_beside_it_are_as_alone(llama: LoadedModel) -> None:
    prompts = [random_prompt(seed, 10 + seed) for seed in range(3)]
    options: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "logprobs": 0}
    alone = [await CoreHarness(llama).alone(prompt, **options) for prompt in prompts]
    harness = CoreHarness(llama)
    names = [harness.submit(prompt, **options) for prompt in prompts]
    rule = Rising(llama.text.vocab_size)
    harness.submit(prompts[0], constraint=rule, max_tokens=5, ignore_eos=True)
    beside = await run(harness, *names)
    assert [result.tokens for result in beside] == [result.tokens for result in alone]
    for one, other in zip(beside, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_schema_holds_whatever_the_model_is(llama: LoadedModel, temperature: float) -> None:
    grammar = llama.text.grammar(SCHEMA)
    harness = CoreHarness(llama)
    names = [
        harness.submit(
            f"Give number {seed}: ",
            constraint=grammar.constraint(),
            max_tokens=40,
            temperature=temperature,
            seed=seed,
        )
        for seed in range(4)
    ]
    for result in await run(harness, *names):
        assert result.reason is FinishReason.STOP
        value = json.loads(result.text)
        assert 0 <= value["n"] <= 999
        assert value["ok"] is True


async def test_a_rule_that_breaks_fails_its_request_alone(llama: LoadedModel) -> None:
    class Broken(Rising):
        def accept(self, token: int) -> None:
            raise ValueError("no such token")

    harness = CoreHarness(llama)
    bad = harness.submit(random_prompt(1, 9), constraint=Broken(llama.text.vocab_size))
    good = harness.submit(random_prompt(2, 9), ignore_eos=True)
    failed, fine = await run(harness, bad, good)
    assert isinstance(failed.end, Failed)
    assert "no such token" in failed.end.message
    assert fine.reason is FinishReason.LENGTH


async def test_an_answer_is_free_until_its_reasoning_ends(llama: LoadedModel) -> None:
    opens = (ord("#"), ord("#"))
    rule = llama.text.grammar({"enum": ["yes"]}).constraint(opens)
    end = next(iter(llama.text.eos_ids))
    mask = rule.mask()
    assert not mask[end // 8] >> end % 8 & 1  # an end would be an answer of nothing
    assert mask[ord("a") // 8] >> ord("a") % 8 & 1
    for token in b"a#b##":
        rule.accept(token)
    mask = rule.mask()
    assert [t for t in range(llama.text.vocab_size) if mask[t // 8] >> t % 8 & 1] == [ord('"')]
    with pytest.raises(ValueError, match="does not fit"):
        rule.accept(ord("x"))
