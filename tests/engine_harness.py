"""Drives the engine's core by hand, so that a test decides what happens between two steps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mlxceld.config import Settings, resolve
from mlxceld.engine.checks import Checks
from mlxceld.engine.constraint import Constraint
from mlxceld.engine.core import EngineCore, Limits
from mlxceld.engine.events import Delta, Event, Failed, Finished, FinishReason
from mlxceld.engine.kv_budget import KvBudget
from mlxceld.engine.probe import BatchVerdict, probe
from mlxceld.engine.recorder import Recorder
from mlxceld.engine.request import GenerationRequest, SamplingParams
from mlxceld.engine.reuse_plan import plan_reuse
from mlxceld.engine.sequence import Sequence
from mlxceld.engine.setup import make_reuse
from mlxceld.engine.stream import EventStream
from mlxceld.models.boundaries import Boundary
from mlxceld.models.folder import ModelFolder
from mlxceld.models.loading import LoadedModel, load_model
from mlxceld.prompt_cache.prompt_cache import PromptCache
from mlxceld.prompt_cache.rejects import RejectLog
from mlxceld.prompt_cache.reports import Budget
from mlxceld.prompt_cache.trace import Trace


def make_settings(state_dir: Path, **overrides: Any) -> Settings:
    """Default settings but for ``overrides``; a mapping changes fields of that group."""
    settings = resolve({"state_dir": state_dir}, environ={}, search=False).settings
    for name, value in overrides.items():
        if isinstance(value, dict):
            value = replace(getattr(settings, name), **value)
        settings = replace(settings, **{name: value})
    return settings


def load_tiny(folder: Path) -> LoadedModel:
    """Load a tiny model folder as the daemon would."""
    return load_model(
        ModelFolder(path=folder, id=folder.name, origin="folder"), progress=lambda _: None
    )


@dataclass
class Clock:
    """Time that passes only when told to."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Result:
    """All that a request was told."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    end: Finished | Failed | None = None

    @property
    def reason(self) -> FinishReason | None:
        return self.end.reason if isinstance(self.end, Finished) else None

    def add(self, events: list[Event]) -> None:
        for event in events:
            self.events.append(event)
            if isinstance(event, Delta):
                self.text += event.text
                self.tokens.extend(event.tokens)
                self.logprobs.extend(item.logprob for item in event.logprobs)
            elif isinstance(event, Finished | Failed):
                assert self.end is None, "two ends"
                self.end = event


class CoreHarness:
    """One core with its store; made and used inside a running event loop."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        max_batch_size: int = 8,
        prefill_chunk: int = 64,
        cache: bool = False,
        capacity_bytes: int = 1 << 30,
        min_prefix: int = 4,
        backend: str = "dense",
        apc: dict[str, Any] | None = None,
        snapshots: tuple[int, int, float] = (1 << 30, 1024, 7200.0),
        verdict: BatchVerdict | None = None,
        kv_bytes: int = 1 << 30,
    ) -> None:
        self.model = model
        self.clock = Clock()
        self.recorder = Recorder()
        rejects = RejectLog(lambda: 0)
        self.trace = Trace(lambda: 0)
        self.cache = PromptCache(
            Budget(capacity_bytes, 1024, 3600, *snapshots),
            self.clock,
            self.trace.emit,
            rejects,
            enabled=cache,
            min_prefix=min_prefix,
        )
        settings = make_settings(
            Path("/nowhere"), kv_backend=backend, apc=apc or {}, prompt_cache={"enabled": cache}
        )
        budget = KvBudget(kv_bytes, "as given")
        plan = plan_reuse(model.status.layer_caches, settings, self.cache.budget.snapshots)
        self.reuse = make_reuse(model, settings, plan, budget, self.cache, Checks(model, settings))
        self.store: Any = self.reuse.store
        if verdict is None:
            verdict = _verdict(model)
        self.core = EngineCore(
            model,
            verdict,
            Limits(max_batch_size, prefill_chunk, kv_bytes),
            self.reuse,
            self.recorder,
            self.clock,
            self._next_turns,
        )
        self._next = 1
        self._keeps: dict[str, Callable[[list[int]], int]] = {}
        self._streams: dict[str, EventStream] = {}
        self.results: dict[str, Result] = {}

    def submit(
        self,
        prompt: list[int] | str,
        *,
        session: str = "s",
        timeout: float = 0.0,
        boundaries: tuple[Boundary, ...] = (),
        keeps: Any = None,
        constraint: Constraint | None = None,
        background: bool = False,
        **sampling: Any,
    ) -> str:
        """Queue a request; greedy unless told otherwise. Returns its id."""
        tokens = (
            self.model.text.encode(prompt, add_special_tokens=False)
            if isinstance(prompt, str)
            else prompt
        )
        params = replace(SamplingParams(temperature=0.0, max_tokens=8), **sampling)
        request_id = f"r{self._next}"
        request = GenerationRequest(
            request_id,
            tokens,
            params,
            session=session,
            stream=True,
            timeout=timeout,
            boundaries=boundaries,
            background=background,
        )
        stream = EventStream(request_id, lambda _: True)
        room = self.model.status.context_length - len(tokens)
        if keeps is not None:
            self._keeps[request_id] = keeps
        self.core.add(
            Sequence(
                seq_id=self._next,
                request=request,
                stream=stream,
                submitted_at=self.clock(),
                deadline=self.clock() + timeout if timeout else None,
                max_tokens=min(params.max_tokens or room, room),
                seed=params.seed if params.seed is not None else 1234 + self._next,
                constraint=constraint,
            )
        )
        self._next += 1
        self._streams[request_id] = stream
        self.results[request_id] = Result()
        return request_id

    def _next_turns(self, request: GenerationRequest) -> Any:
        keeps = self._keeps.get(request.id)
        return None if keeps is None else SimpleNamespace(keeps=keeps, replied=lambda _: None)

    async def step(self, count: int = 1) -> None:
        """Move the core on and collect what it told."""
        for _ in range(count):
            self.core.step()
            await self.collect()

    async def collect(self) -> None:
        await asyncio.sleep(0)
        for request_id, stream in self._streams.items():
            self.results[request_id].add(stream.drain())

    async def run(self, limit: int = 5000) -> None:
        """Step until nothing is in flight."""
        while self.core.busy:
            limit -= 1
            assert limit, "the core does not come to an end"
            await self.step()
        await self.collect()

    def generated(self, request_id: str) -> int:
        """Tokens generated so far; more than were told where a character is incomplete."""
        for sequence in self.core.sequences():
            if sequence.request.id == request_id:
                return len(sequence.generated)
        end = self.results[request_id].end
        return end.usage.completion_tokens if end is not None else 0

    async def alone(self, prompt: list[int] | str, **sampling: Any) -> Result:
        """The result of one request with nothing beside it."""
        request_id = self.submit(prompt, **sampling)
        await self.run()
        return self.results[request_id]

    def check(self) -> None:
        """Whatever holds blocks or bytes agrees with the books."""
        self.core.check()


_verdicts: dict[int, BatchVerdict] = {}


def _verdict(model: LoadedModel) -> BatchVerdict:
    key = id(model.module)
    if key not in _verdicts:
        _verdicts[key] = probe(model.module, model.status.vocab_size)
    return _verdicts[key]


def random_prompt(seed: int, length: int, vocab: int = 256) -> list[int]:
    """Fixed token ids below ``vocab``."""
    rng = random.Random(seed)
    return [rng.randrange(vocab) for _ in range(length)]
