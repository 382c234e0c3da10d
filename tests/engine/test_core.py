"""What a request gets from the engine, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from engine_harness import CoreHarness, random_prompt
from mlxceld.engine.batch import DecodeBatch, Step
from mlxceld.engine.events import Failed, FailureKind, FinishReason, PrefillProgress
from mlxceld.engine.probe import BatchVerdict
from tiny_models import EOS_ID, tiny_families

Make = Callable[..., CoreHarness]

# Lengths on both sides of the chunk (64), of the windows (32, 64) and of MLX's 256-token steps.
MIX: list[tuple[int, dict[str, Any]]] = [
    (5, {"max_tokens": 9}),
    (1, {"max_tokens": 6}),
    (40, {"max_tokens": 3}),
    (41, {"max_tokens": 12, "logprobs": 2}),
    (64, {"max_tokens": 5}),
    (65, {"max_tokens": 7}),
    (130, {"max_tokens": 4}),
    (2, {"max_tokens": 20}),
    (270, {"max_tokens": 5}),
    (33, {"max_tokens": 8, "temperature": 0.9, "seed": 11, "top_p": 0.9}),
    (12, {"max_tokens": 10, "presence_penalty": 0.7, "frequency_penalty": 0.2}),
    (50, {"max_tokens": 1}),
]


@pytest.mark.parametrize("family", tiny_families())
async def test_a_batch_changes_no_row(core: Make, family: str) -> None:
    prompts = [random_prompt(i, length) for i, (length, _) in enumerate(MIX)]
    single = core(family)
    alone = [
        await single.alone(prompt, ignore_eos=True, **params)
        for prompt, (_, params) in zip(prompts, MIX, strict=True)
    ]
    batch = core(family, max_batch_size=6)
    ids = [
        batch.submit(prompt, ignore_eos=True, **params)
        for prompt, (_, params) in zip(prompts, MIX, strict=True)
    ]
    # Others join late and are cancelled: waiting, in prefill and while they generate.
    noise = [batch.submit(random_prompt(90 + i, 20 * i + 3), max_tokens=50) for i in range(4)]
    batch.core.cancel(noise[3])
    for request_id in noise[:3]:
        await batch.step(2)
        batch.core.cancel(request_id)
    await batch.run()
    for want, request_id, (length, params) in zip(alone, ids, MIX, strict=True):
        got = batch.results[request_id]
        assert got.tokens == want.tokens, (length, params)
        assert got.text == want.text
        assert len(got.tokens) == params["max_tokens"]
        assert got.reason is FinishReason.LENGTH
        assert got.logprobs == pytest.approx(want.logprobs, abs=1e-4)
    assert {batch.results[i].reason for i in noise} == {FinishReason.CANCELLED}
    assert not batch.core.busy


@pytest.mark.parametrize("family", ["llama", "qwen3_next", "gemma3_text"])
async def test_row_by_row_gives_the_same(core: Make, family: str) -> None:
    prompts = [random_prompt(i, length) for i, length in enumerate((5, 70, 1, 130))]
    together, apart = core(family), core(family, verdict=BatchVerdict(False, False, "test"))
    for harness in (together, apart):
        for prompt in prompts:
            harness.submit(prompt, ignore_eos=True, max_tokens=6)
        await harness.run()
    assert [r.tokens for r in apart.results.values()] == [
        r.tokens for r in together.results.values()
    ]


async def test_a_seed_gives_the_same_text_whatever_is_beside_it(core: Make) -> None:
    want = (await core().alone("seeded", temperature=1.0, seed=3, max_tokens=24)).tokens
    other = (await core().alone("seeded", temperature=1.0, seed=4, max_tokens=24)).tokens
    assert want != other
    harness = core()
    for i in range(5):
        harness.submit(random_prompt(i, 30 + i), temperature=1.0, max_tokens=40)
    await harness.step(3)
    request_id = harness.submit("seeded", temperature=1.0, seed=3, max_tokens=24)
    await harness.run()
    assert harness.results[request_id].tokens == want


async def test_eos_ends_and_is_not_counted_unless_ignored(core: Make) -> None:
    harness = core()
    bias = {EOS_ID: 100.0}
    result = await harness.alone("hello", logit_bias=bias, max_tokens=5)
    assert result.reason is FinishReason.STOP
    assert (result.text, result.tokens) == ("", [])
    assert result.end is not None
    assert result.end.usage.completion_tokens == 0
    ignored = await harness.alone("hello", logit_bias=bias, max_tokens=5, ignore_eos=True)
    assert ignored.reason is FinishReason.LENGTH
    assert ignored.tokens == [EOS_ID] * 5


async def test_stop_string_across_tokens(core: Make) -> None:
    # Bias makes the model write "abab…": one byte a token.
    harness = core()
    whole = await harness.alone("x", max_tokens=12, ignore_eos=True)
    assert len(whole.text) >= 4
    stop = whole.text[2:4]
    at = whole.text.find(stop)
    cut = await harness.alone("x", max_tokens=12, ignore_eos=True, stop=(stop,))
    assert cut.text == whole.text[:at]
    assert cut.reason is FinishReason.STOP
    assert cut.end is not None
    assert getattr(cut.end, "stop_text", None) == stop


async def test_max_tokens_costs_no_step_too_many(core: Make) -> None:
    harness = core(prefill_chunk=64)
    before = harness.recorder.steps
    await harness.alone(random_prompt(1, 20), max_tokens=5, ignore_eos=True)
    assert harness.recorder.steps - before == 1 + 5


async def test_freed_memory_goes_back_while_it_runs(
    core: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = core()
    await harness.step(1)
    calls: list[int] = []
    monkeypatch.setattr("mlxceld.engine.core._RELEASE_EVERY_STEPS", 4)
    monkeypatch.setattr(
        "mlxceld.kv.memory.release_freed", lambda: calls.append(harness.recorder.steps)
    )
    await harness.alone("x", max_tokens=12, ignore_eos=True)
    assert calls == list(range(4, harness.recorder.steps + 1, 4))
    assert len(calls) >= 3


async def test_the_context_ends_with_length(tiny_models: Any) -> None:
    from engine_harness import load_tiny

    model = load_tiny(tiny_models.folder("llama", context_length=64))
    harness = CoreHarness(model)
    result = await harness.alone(random_prompt(1, 60), max_tokens=50, ignore_eos=True)
    assert result.reason is FinishReason.LENGTH
    assert len(result.tokens) == 4


async def test_deadline_ends_waiting_and_running(core: Make) -> None:
    harness = core(max_batch_size=1)
    running = harness.submit("a", max_tokens=500, timeout=5.0, ignore_eos=True)
    waiting = harness.submit("b", max_tokens=500, timeout=5.0)
    forever = harness.submit("c", max_tokens=2, ignore_eos=True)
    await harness.step(3)
    assert harness.generated(running)
    harness.clock.now += 5.0
    await harness.run()
    assert harness.results[running].reason is FinishReason.TIMEOUT
    assert harness.results[waiting].reason is FinishReason.TIMEOUT
    assert harness.results[forever].reason is FinishReason.LENGTH


async def test_a_stream_gets_a_token_between_chunks(core: Make) -> None:
    harness = core(prefill_chunk=16)
    stream = harness.submit("a", max_tokens=100, ignore_eos=True)
    await harness.step(3)
    long = harness.submit(random_prompt(2, 161), max_tokens=2, ignore_eos=True)
    seen = []
    while not harness.generated(long):
        before = harness.generated(stream)
        await harness.step()
        seen.append(harness.generated(stream) - before)
    # Ten chunks; after the last one a step is in flight before a token is taken again.
    assert all(count >= 1 for count in seen[1:10])
    progress = [e.done for e in harness.results[long].events if isinstance(e, PrefillProgress)]
    assert progress == list(range(16, 161, 16))


async def test_a_short_prompt_overtakes_a_long_one(core: Make) -> None:
    harness = core(prefill_chunk=16)
    long = harness.submit(random_prompt(2, 200), max_tokens=2, ignore_eos=True)
    await harness.step(2)
    short = harness.submit(random_prompt(3, 10), max_tokens=2, ignore_eos=True)
    await harness.step(3)
    assert harness.generated(short)
    assert not harness.generated(long)
    await harness.run()


async def test_a_request_fault_fails_that_request_alone(
    core: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = core()
    want = (await harness.alone("steady", max_tokens=8, ignore_eos=True)).tokens
    steady = harness.submit("steady", max_tokens=8, ignore_eos=True)
    broken = harness.submit("broken", max_tokens=8, temperature=1.0)
    decoded = harness.submit("decoded", max_tokens=8, ignore_eos=True)
    await harness.step(2)

    def explode(*_: object) -> mx.array:
        raise ValueError("the sampler broke")

    sequences = {s.request.id: s for s in harness.core.sequences()}
    monkeypatch.setattr(sequences[broken].sampler, "sample", explode)
    monkeypatch.setattr(sequences[decoded].output, "add", explode)
    await harness.run()
    for request_id, text in ((broken, "the sampler broke"), (decoded, "the sampler broke")):
        end = harness.results[request_id].end
        assert isinstance(end, Failed)
        assert end.kind is FailureKind.REQUEST
        assert text in end.message
    assert harness.results[steady].tokens == want


async def test_after_an_engine_fault_the_next_request_works(
    core: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = core()
    want = (await harness.alone("again", max_tokens=6, ignore_eos=True)).tokens
    running = harness.submit("running", max_tokens=50, ignore_eos=True)
    await harness.step(2)
    with monkeypatch.context() as patch:
        patch.setattr("mlxceld.engine.batch.DecodeBatch.launch", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            harness.core.step()
    harness.core.fail_all(FailureKind.ENGINE, "the engine failed")
    await harness.collect()
    end = harness.results[running].end
    assert isinstance(end, Failed)
    assert end.kind is FailureKind.ENGINE
    assert (await harness.alone("again", max_tokens=6, ignore_eos=True)).tokens == want


async def test_counters_add_up(core: Make) -> None:
    harness = core(prefill_chunk=16)
    kept = harness.submit(random_prompt(1, 30), max_tokens=3, ignore_eos=True)
    gone = harness.submit(random_prompt(2, 300), max_tokens=3, ignore_eos=True)
    await harness.step(4)
    harness.core.cancel(gone)
    await harness.run()
    recorder = harness.recorder
    partly = next(
        e.done for e in reversed(harness.results[gone].events) if isinstance(e, PrefillProgress)
    )
    assert 0 < partly < 300
    assert recorder.prompt_tokens == 30 + partly
    assert recorder.prompt_tokens == recorder.prompt_tokens_computed + recorder.prompt_tokens_reused
    assert recorder.completion_tokens == 3
    assert recorder.outcomes() == {("completions", "length"): 1, ("completions", "cancelled"): 1}
    assert harness.results[kept].reason is FinishReason.LENGTH


async def test_a_decode_step_is_timed_from_its_launch(
    core: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = core()
    launch, wait = DecodeBatch.launch, Step.wait

    def slow_launch(batch: DecodeBatch) -> Step:
        harness.clock.now += 2.0
        return launch(batch)

    def slow_wait(step: Step) -> list[int]:
        harness.clock.now += 0.5
        return wait(step)

    monkeypatch.setattr(DecodeBatch, "launch", slow_launch)
    monkeypatch.setattr(Step, "wait", slow_wait)
    await harness.alone("x", max_tokens=2, ignore_eos=True)
    assert harness.recorder.longest_decode_step_seconds == 2.5
