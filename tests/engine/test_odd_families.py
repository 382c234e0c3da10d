"""Families whose own code does what batching, sharing or chunks change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from family_models import load_family

from engine_harness import CoreHarness, Result, random_prompt
from mlxceld.engine.probe import BatchVerdict, probe
from mlxceld.engine.shared_probe import SharingVerdict
from mlxceld.engine.verify import verify
from mlxceld.kv import row_caches
from mlxceld.models.caches.registry import leaves
from mlxceld.models.loading import LoadedModel

Load = Callable[[str], LoadedModel]

FULL = BatchVerdict(True, True)


@pytest.fixture(scope="session")
def odd_model(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Tiny models of any family of mlx-lm, each loaded once."""
    root = tmp_path_factory.mktemp("odd")
    loaded: dict[str, LoadedModel] = {}

    def load(family: str) -> LoadedModel:
        if family not in loaded:
            loaded[family] = load_family(family, root)
        return loaded[family]

    return load


def _ask(harness: CoreHarness, prompt: list[int], tokens: int = 6) -> str:
    return harness.submit(prompt, max_tokens=tokens, ignore_eos=True, logprobs=0)


async def _cold(model: LoadedModel, prompt: list[int], tokens: int = 6) -> Result:
    harness = CoreHarness(model, prefill_chunk=512)
    return await harness.alone(prompt, max_tokens=tokens, ignore_eos=True, logprobs=0)


async def _equal(harness: CoreHarness, prompts: list[list[int]], tokens: int = 6) -> None:
    """All at once, each answer is that of a cold run alone."""
    ids = [_ask(harness, prompt, tokens) for prompt in prompts]
    await harness.run()
    for request_id, prompt in zip(ids, prompts, strict=True):
        got, want = harness.results[request_id], await _cold(harness.model, prompt, tokens)
        assert got.tokens == want.tokens
        assert got.logprobs == pytest.approx(want.logprobs, abs=1e-4)


async def test_unrelated_prompts_past_block_sparse_attention(odd_model: Load) -> None:
    model = odd_model("minimax_m3_vl")
    verdict = probe(model.module, 256)
    assert verdict.mode == "rows"
    assert verdict.reason.startswith("past 256 tokens")
    await _equal(CoreHarness(model), [random_prompt(1, 420), random_prompt(2, 305)])


async def test_a_shared_beginning_past_block_sparse_attention(odd_model: Load) -> None:
    harness = CoreHarness(odd_model("minimax_m3_vl"), cache=True, backend="paged")
    shared = random_prompt(3, 320)
    await _equal(harness, [[*shared, *random_prompt(4 + i, 20 + 9 * i)] for i in range(2)])
    harness.check()


async def test_a_step_that_cannot_read_blocks_is_run_again(odd_model: Load) -> None:
    """With one prompt whose own tokens are past the threshold; no request fails."""
    harness = CoreHarness(
        odd_model("minimax_m3_vl"), cache=True, backend="paged", verdict=FULL, prefill_chunk=512
    )
    harness.reuse.reading.sharing = SharingVerdict(True, False)
    shared = random_prompt(5, 200)
    ids = [_ask(harness, [*shared, *random_prompt(6 + i, n)]) for i, n in enumerate((300, 12))]
    await harness.run()
    assert [harness.results[i].reason for i in ids] == ["length", "length"]
    assert harness.reuse.reading.sharing.mode != "read in place"
    harness.check()


@pytest.mark.parametrize("when", ["prefill", "decode"])
async def test_after_a_fall_back_answers_are_exact(odd_model: Load, when: str) -> None:
    """deepseek_v3's latent attention cannot read blocks in place; it is made to try."""
    harness = CoreHarness(
        odd_model("deepseek_v3"), cache=True, backend="paged", verdict=FULL, prefill_chunk=512
    )
    shared = random_prompt(9, 300)
    prompts = [[*shared, *random_prompt(10 + i, 5 + 4 * i)] for i in range(3)]
    in_place = SharingVerdict(True, False)
    if when == "prefill":
        harness.reuse.reading.sharing = in_place
    ids = [_ask(harness, prompt, 12) for prompt in prompts]
    while any(harness.generated(i) < 4 for i in ids):
        await harness.step()
    if when == "decode":
        harness.reuse.reading.sharing = in_place
        harness.core.give_back()
    await harness.run()
    assert harness.reuse.reading.sharing.mode == "gathered in each step"
    assert "attention" in harness.reuse.reading.sharing.reason
    for request_id, prompt in zip(ids, prompts, strict=True):
        got, want = harness.results[request_id], await _cold(harness.model, prompt, 12)
        assert got.tokens == want.tokens
        assert got.logprobs == pytest.approx(want.logprobs, abs=1e-4)
    harness.check()


async def test_what_cannot_be_gathered_either_is_copied(
    odd_model: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlxceld.kv.shared_attention import SharedPrefixCache

    harness = CoreHarness(
        odd_model("deepseek_v3"), cache=True, backend="paged", verdict=FULL, prefill_chunk=512
    )
    shared = random_prompt(9, 300)
    prompts = [[*shared, *random_prompt(20 + i, 5 + 4 * i)] for i in range(3)]
    ids = [_ask(harness, prompt, 12) for prompt in prompts]
    while any(harness.generated(i) < 4 for i in ids):
        await harness.step()

    def refuse(*_: Any) -> None:
        raise ValueError("no rows here")

    monkeypatch.setattr(SharedPrefixCache, "whole", refuse)
    await harness.run()
    assert harness.reuse.reading.sharing.mode == "copied into each row"
    assert "no rows here" in harness.reuse.reading.sharing.reason
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert harness.results[request_id].tokens == (await _cold(harness.model, prompt, 12)).tokens
    await _equal(harness, [[*shared, *random_prompt(30 + i, 8)] for i in range(2)])
    harness.check()


@pytest.mark.parametrize("lengths", [(90, 2), (90, 3), (90, 2, 3, 4, 1)])
async def test_prompts_shorter_than_what_is_remembered(
    odd_model: Load, lengths: tuple[int, ...]
) -> None:
    harness = CoreHarness(odd_model("longcat_flash_ngram"))
    prompts = [random_prompt(40 + i, length) for i, length in enumerate(lengths)]
    await _equal(harness, prompts, tokens=8)


def test_rows_that_do_not_fit_leave_a_batch_as_it_was(odd_model: Load) -> None:
    module = odd_model("longcat_flash_ngram").module
    rows = []
    for tokens in ([1, 2, 3, 4], [5, 6]):
        row = row_caches.new_row(module)
        mx.eval(module(mx.array([tokens]), cache=row))
        rows.append(row_caches.merge([row]))
    before = [leaf.state for leaf in leaves(rows[0])]
    assert not row_caches.extend(*rows)
    assert [str(leaf.state) for leaf in leaves(rows[0])] == [str(s) for s in before]


async def test_gemma2_runs_in_batches(odd_model: Load) -> None:
    model = odd_model("gemma2")
    assert probe(model.module, 256) == FULL
    prompts = [random_prompt(50 + i, length) for i, length in enumerate((5, 40, 130))]
    await _equal(CoreHarness(model), prompts)
    shared = random_prompt(60, 150)
    harness = CoreHarness(model, cache=True, backend="paged")
    assert harness.reuse.reading.sharing.mode == "gathered in each step"
    await _equal(harness, [[*shared, *random_prompt(61 + i, 9 + i)] for i in range(3)])


async def test_prompts_of_one_length_where_caches_have_no_batched_form(odd_model: Load) -> None:
    """llama4's attention in chunks: they are not computed together either."""
    model = odd_model("llama4")
    verdict = probe(model.module, 256)
    assert verdict.mode == "rows"
    harness = CoreHarness(model, verdict=verdict)
    await _equal(harness, [random_prompt(80 + i, 20) for i in range(3)])


async def test_a_model_that_feels_how_a_prompt_is_cut(odd_model: Load) -> None:
    """phi3small adds its mask instead of applying it, and cuts attention by a chunk's blocks."""
    model = odd_model("phi3small")
    verdict = probe(model.module, 256)
    assert (verdict.mode, verdict.fixed_chunks) == ("rows", True)
    assert not verify(model.module, 256, verdict, 16).passed
    harness = CoreHarness(model, prefill_chunk=64, verdict=verdict)
    prompts = [random_prompt(70 + i, length) for i, length in enumerate((150, 31, 97))]
    ids = [_ask(harness, prompt) for prompt in prompts]
    await harness.run()
    for request_id, prompt in zip(ids, prompts, strict=True):
        row = row_caches.new_row(model.module)
        model.module(mx.array([prompt[:-1]]), cache=row)
        logits = model.module(mx.array([prompt[-1:]]), cache=row)[0, -1]
        assert harness.results[request_id].tokens[0] == mx.argmax(logits).item()
