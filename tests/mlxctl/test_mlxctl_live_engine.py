"""mlxctl against the real engine with a tiny model behind the real admin API."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from admin_harness import LiveAdmin, resolved_settings
from mlxceld.engine.engine import Engine
from mlxceld.engine.errors import NotReadyError
from mlxceld.engine.events import Delta, Event, Finished, FinishReason
from mlxceld.engine.request import GenerationRequest, SamplingParams
from mlxceld.models.folder import ModelFolder
from mlxceld.models.loading import load_model
from mlxceld.prompt_cache.key import session_hash
from mlxctl.context import Ctl
from mlxctl.main import run
from tiny_models import TinyModels

T = TypeVar("T")
PROMPT = list(range(1, 40))


class Daemon:
    """An engine with its admin API, and a shell with mlxctl."""

    def __init__(
        self, engine: Engine, admin: LiveAdmin, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.engine = engine
        self._admin = admin
        self._capsys = capsys

    def ctl(self, *arguments: str) -> Any:
        """The JSON that mlxctl prints; the command has to succeed."""
        code = run(["-o", "json", *arguments], Ctl(options={"socket": self._admin.path}))
        captured = self._capsys.readouterr()
        assert code == 0, captured.err
        return json.loads(captured.out)

    def on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the event loop of the admin API."""
        return asyncio.run_coroutine_threadsafe(work, self._admin.loop).result(60)

    async def generate(self, request: GenerationRequest, first: int | None = None) -> list[Event]:
        """Submit and take all events, or the first so many."""
        (stream,) = self.engine.submit([request])
        events = []
        async for event in stream:
            events.append(event)
            if len(events) == first:
                self.streams = [stream]
                break
        return events

    async def rest(self) -> list[Event]:
        return [event async for event in self.streams[0]]


def request(
    request_id: str, prompt: list[int] = PROMPT, *, max_tokens: int = 4
) -> GenerationRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return GenerationRequest(
        request_id, prompt, sampling, session="alice", client="laptop", stream=True
    )


@pytest.fixture
def daemon(tiny_models: TinyModels, capsys: pytest.CaptureFixture[str]) -> Iterator[Daemon]:
    folder = tiny_models.folder("llama", context_length=1_000_000)
    resolved = resolved_settings()
    engine = Engine(
        resolved.settings,
        lambda progress: load_model(
            ModelFolder(path=folder, id="tiny", origin="folder"), progress=progress
        ),
    )
    with (
        tempfile.TemporaryDirectory(prefix="mx") as short,
        LiveAdmin(engine, resolved, Path(short) / "admin.sock") as admin,
    ):
        engine.start()
        try:
            yield Daemon(engine, admin, capsys)
        finally:
            assert engine.stop(60)


def test_a_day_in_the_life(daemon):
    assert daemon.ctl("wait", "--for", "ready", "--timeout", "60s")["model"]["family"] == "llama"

    # Two turns of a session: the second shares what the first left, and leaves more.
    events = daemon.on_loop(daemon.generate(request("one")))
    answer = [token for e in events if isinstance(e, Delta) for token in e.tokens]
    assert len(answer) == 4
    second = [*PROMPT, *answer, 7, 8, 9]
    end = daemon.on_loop(daemon.generate(request("two", second)))[-1]
    assert isinstance(end, Finished)
    assert end.usage.cached_tokens == len(PROMPT) + 3  # the last token generated was never fed
    daemon.ctl("wait", "--for", "idle")
    stats = daemon.ctl("cache", "stats")
    assert (stats["lookups"], stats["hits"], stats["consumed"]) == (2, 1, 0)
    assert (stats["entries"], stats["inserts"]) == (2, 2)
    assert stats["bytes"] > 0
    listed = daemon.ctl("cache", "entries", "--session", "alice")["entries"]
    told = [(entry["tokens"], entry["hits"], entry["origin"]) for entry in listed]
    assert told == [(len(second) + 3, 0, "completion"), (len(PROMPT) + 3, 1, "completion")]
    assert [entry["blocks_shared"] for entry in listed] == [2, 2]
    assert stats["prompt_tokens_reused"] == end.usage.cached_tokens

    daemon.ctl("trace", "on")
    assert daemon.ctl("status")["trace_enabled"] is True
    before = stats["bytes"]
    dry = daemon.ctl("cache", "resize", "--capacity", "0", "--dry-run")
    assert (dry["evicted_entries"], dry["evicted_bytes"]) == (2, before)
    assert daemon.ctl("cache", "stats")["entries"] == 2
    done = daemon.ctl("cache", "flush", "--session", session_hash("alice"), "--yes")
    assert (done["entries"], done["bytes"]) == (2, before)
    stats = daemon.ctl("cache", "stats")
    assert (stats["entries"], stats["bytes"], stats["evictions_flush"]) == (0, 0, 2)
    daemon.ctl("cache", "resize", "--max-entries", "0")
    assert daemon.ctl("cache", "stats")["enabled"] is False

    daemon.ctl("drain")
    with pytest.raises(NotReadyError):
        daemon.on_loop(daemon.generate(request("late")))


def test_a_prompt_is_warmed_pinned_outlives_a_flood_and_is_unpinned(daemon, tmp_path):
    daemon.ctl("wait", "--for", "ready", "--timeout", "60s")
    before = daemon.ctl("cache", "stats")["background_tokens_computed"]
    file = tmp_path / "prompt.json"
    file.write_text(json.dumps({"prompt": "the quick brown fox jumps over the lazy dog " * 4}))
    first = daemon.ctl("cache", "warm", str(file), "--session", "alice", "--pin")
    assert (first["cached_tokens"], first["pinned"]) == (0, True)
    listed = daemon.ctl("cache", "entries", "--session", "alice")["entries"]
    assert [one["digest"] for one in listed if one["pins"]] == [first["digest"]]
    stats = daemon.ctl("cache", "stats")
    assert stats["background_tokens_computed"] - before == first["tokens"]
    assert (stats["prompt_tokens"], stats["completion_tokens"]) == (0, 0)
    again = daemon.ctl("cache", "warm", str(file), "--session", "alice")
    assert again["cached_tokens"] == first["tokens"] - 1

    daemon.ctl("cache", "resize", "--max-entries", "2")
    for start in (100, 150, 200):
        daemon.on_loop(daemon.generate(request(f"r{start}", list(range(start, start + 40)))))
    daemon.ctl("wait", "--for", "idle")
    listed = daemon.ctl("cache", "entries")["entries"]
    assert len(listed) == 2
    assert first["digest"] in [one["digest"] for one in listed]
    assert daemon.ctl("cache", "unpin", first["digest"][:9])["pins"] == 0
    daemon.on_loop(daemon.generate(request("more", list(range(10, 60)))))
    daemon.on_loop(daemon.generate(request("last", list(range(60, 110)))))
    daemon.ctl("wait", "--for", "idle")
    listed = daemon.ctl("cache", "entries")["entries"]
    assert first["digest"] not in [one["digest"] for one in listed]


def test_a_request_in_flight_is_seen_and_cancelled(daemon):
    daemon.ctl("wait", "--for", "ready", "--timeout", "60s")
    daemon.on_loop(daemon.generate(request("long", max_tokens=100_000), first=3))
    (seen,) = daemon.ctl("requests", "list")["requests"]
    assert (seen["id"], seen["phase"], seen["client"]) == ("long", "decode", "laptop")
    assert seen["session"] == session_hash("alice")
    assert daemon.ctl("status")["running"] == 1
    daemon.ctl("requests", "cancel", "lo")
    end = daemon.on_loop(daemon.rest())[-1]
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.CANCELLED
    daemon.ctl("wait", "--for", "idle", "--timeout", "10s")
    assert daemon.ctl("requests", "list") == {"requests": []}
