"""A row whose logits are not numbers fails; the others of its batch go on."""

from __future__ import annotations

import pytest

from damaged_models import DAMAGED_TOKEN, damage_token
from engine_harness import CoreHarness, load_tiny
from mlxceld.engine.events import Failed, FailureKind
from mlxceld.models.loading import LoadedModel
from tiny_models import TinyModels


@pytest.fixture(scope="module", params=["llama", "qwen3_next"])
def damaged(
    request: pytest.FixtureRequest,
    tiny_models: TinyModels,
    tmp_path_factory: pytest.TempPathFactory,
) -> LoadedModel:
    """A model that works but for one token."""
    folder = tmp_path_factory.mktemp("damaged") / request.param
    return load_tiny(damage_token(tiny_models.folder(request.param), folder))


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}, {"logprobs": 2}])
async def test_the_request_fails_and_its_neighbours_go_on(
    damaged: LoadedModel, sampling: dict[str, float]
) -> None:
    good = [[5, 6, 7, 8], [9, 10, 11]]
    harness = CoreHarness(damaged)
    expected = [await harness.alone(prompt, seed=3, **sampling) for prompt in good]
    ids = [harness.submit(prompt, seed=3, **sampling) for prompt in good]
    bad = harness.submit([5, DAMAGED_TOKEN, 7], **sampling)
    await harness.run()
    end = harness.results[bad].end
    assert isinstance(end, Failed)
    assert end.kind is FailureKind.REQUEST
    assert "logits are not numbers" in end.message
    assert harness.results[bad].text == ""
    for request_id, alone in zip(ids, expected, strict=True):
        assert harness.results[request_id].tokens == alone.tokens
        assert harness.results[request_id].end == alone.end


async def test_what_a_failed_request_computed_is_not_stored(damaged: LoadedModel) -> None:
    harness = CoreHarness(damaged, cache=True)
    before = await harness.alone([5, 6, 7, 8, 9])
    entries = len(harness.store)
    await harness.alone([5, DAMAGED_TOKEN, 7, 8, 9])
    assert len(harness.store) == entries
    assert (await harness.alone([5, 6, 7, 8, 9])).tokens == before.tokens
