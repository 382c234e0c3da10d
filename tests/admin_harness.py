"""The admin API over an engine without a model: its cache and its trace are the real ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from mlxceld.admin.app import create_admin_app
from mlxceld.admin.reports import ReloadError, ReloadReport
from mlxceld.admin.socket import AdminSocket
from mlxceld.api.app import create_app, prompts_of
from mlxceld.api.keys import ApiKeys
from mlxceld.api.prompts import Prompts
from mlxceld.config import ResolvedSettings, resolve
from mlxceld.engine.errors import NotReadyError
from mlxceld.prompt_cache.dense_store import DenseStore
from mlxceld.prompt_cache.key import Bucket
from mlxceld.prompt_cache.prompt_cache import PromptCache
from mlxceld.prompt_cache.radix import as_tokens
from mlxceld.prompt_cache.rejects import RejectLog
from mlxceld.prompt_cache.reports import (
    Budget,
    BudgetChange,
    EntryList,
    FlushReport,
    PinReport,
    ResizeReport,
    TraceEvent,
    VerifyCheck,
    VerifyReport,
)
from mlxceld.prompt_cache.stats import fill
from mlxceld.prompt_cache.trace import Trace
from mlxceld.prompt_cache.trace_feed import TraceFeed
from mlxceld.telemetry.cache_stats import CacheStats
from mlxceld.telemetry.status import (
    EngineState,
    EngineStatus,
    ModelStatus,
    RejectStatus,
    RequestStatus,
)

T = TypeVar("T")

BUDGET = Budget(10_000, 100, 3600.0, 5_000, 50, 7200.0)
BUCKET = Bucket("m", "sig")

MODEL = ModelStatus(
    id="tiny",
    path="tiny-folder",
    family="llama",
    device="cpu",
    dtype="float32",
    context_length=4096,
    vocab_size=320,
    parameters=12_345,
    weight_bytes=49_380,
    layer_caches={"pageable": 2},
    batching="full",
    batching_reason="",
    loaded_at=1.0,
    template_steps={
        "join_leading_system": "system messages at the beginning are joined",
        "merge_users": "turns of the user in a row are one",
    },
)


def request_status(request_id: str, seq_id: int = 1, **values: Any) -> RequestStatus:
    """A request in flight."""
    fields: dict[str, Any] = {
        "endpoint": "chat",
        "client": "laptop",
        "session": "0123456789ab",
        "phase": "decode",
        "prompt_tokens": 1500,
        "cached_tokens": 1400,
        "prefilled_tokens": 1500,
        "generated_tokens": 7,
        "max_tokens": 64,
        "age_seconds": 2.5,
        "stream": True,
    }
    return RequestStatus(id=request_id, seq_id=seq_id, **{**fields, **values})


def prompts_over(engine: Any, resolved: ResolvedSettings) -> Prompts:
    """What reads the bodies that the public API over an engine would be sent."""
    app = create_app(
        engine, resolved.settings, ApiKeys.none(), metrics_text=lambda accept: (b"", accept)
    )
    return prompts_of(app)


def resolved_settings(**flags: Any) -> ResolvedSettings:
    """Default settings but for what is given, as if by flags."""
    return resolve(flags, environ={}, search=False)


class CacheEngine:
    """An EngineClient with no model. ``stuck`` leaves orders waiting, as during a load."""

    def __init__(self, *, state: EngineState = EngineState.READY) -> None:
        self.rejects = RejectLog(lambda: 1_700_000_000_000)
        self.trace = Trace(lambda: 1_700_000_000_000)
        self.store: DenseStore[str] = DenseStore(
            BUDGET, lambda: 0.0, self.trace.emit, self.rejects, min_prefix=2
        )
        self.prompt_cache = PromptCache(
            BUDGET, lambda: 0.0, self.trace.emit, self.rejects, min_prefix=2
        )
        self.prompt_cache.add(self.store)
        self.base = EngineStatus(state=state, model=MODEL)
        self.requests: dict[str, RequestStatus] = {}
        self.drained = False
        self.stuck = False
        self.stopped = False
        self.orders: list[Future[Any]] = []

    @property
    def status(self) -> EngineStatus:
        return replace(
            self.base,
            state=EngineState.DRAINING if self.drained else self.base.state,
            running=len(self.requests),
            requests=tuple(self.requests.values()),
            cache=fill(CacheStats(), self.prompt_cache),
            trace_enabled=self.trace.enabled,
            newest_rejects={
                reason.value: RejectStatus(last.seq_id, last.context_len, last.at_unix_ms)
                for reason, last in self.rejects.newest.items()
            },
        )

    @property
    def cache(self) -> CacheEngine:
        return self

    @property
    def text(self) -> Any:
        raise NotReadyError("there is no model")

    def foretell_with(self, make: Any) -> None:
        pass

    def submit(self, requests: Sequence[Any]) -> list[Any]:
        raise NotReadyError("there is no model")

    def put(self, tokens: list[int], *, session: str = "s", nbytes: int = 100) -> None:
        """Store something."""
        self.store.insert(BUCKET, session, tokens, "kv", nbytes)

    def cancel(self, request_id: str) -> bool:
        return self.requests.pop(request_id, None) is not None

    def flush(
        self, *, store: str = "all", session: str | None = None, dry_run: bool = False
    ) -> Future[FlushReport]:
        return self._order(lambda: self.prompt_cache.flush(store, session, dry_run=dry_run))

    def resize(
        self, changes: BudgetChange, *, dry_run: bool = False, generation: int | None = None
    ) -> Future[ResizeReport]:
        return self._order(
            lambda: self.prompt_cache.resize(changes, dry_run=dry_run, generation=generation)
        )

    def pin(
        self, tokens: Sequence[int], session: str, signature: str, *, keep: bool = True
    ) -> Future[PinReport]:
        ids = as_tokens(tokens)
        return self._order(lambda: self.prompt_cache.pin(BUCKET, session, ids, keep=keep))

    def verify(self) -> Future[VerifyReport]:
        check = VerifyCheck("adopt == cold", "pageable", True, "8 tokens")
        return self._order(lambda: VerifyReport((check,)))

    def unpin(self, digest: str) -> Future[PinReport | None]:
        return self._order(lambda: self.prompt_cache.unpin(digest))

    def entries(
        self, *, store: str = "all", session: str | None = None, limit: int | None = None
    ) -> Future[EntryList]:
        return self._order(lambda: self.prompt_cache.entries(store, session=session, limit=limit))

    def set_trace(self, enabled: bool) -> None:
        self.trace.switch(enabled)

    def follow_trace(self, wake: Callable[[], None]) -> TraceFeed:
        return self.trace.follow(wake)

    def trace_tail(self, n: int) -> list[TraceEvent]:
        return self.trace.tail(n)

    def drain(self) -> None:
        self.drained = True

    def _order(self, work: Callable[[], T]) -> Future[T]:
        if self.stopped:
            raise NotReadyError("the engine is stopped")
        future: Future[T] = Future()
        self.orders.append(future)
        if not self.stuck:
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
        return future


class LiveAdmin:
    """The admin API served on a Unix socket by a thread of its own."""

    def __init__(self, engine: Any, resolved: ResolvedSettings, path: Path) -> None:
        self.engine = engine
        self.path = path
        self._resolved = resolved
        self.reloaded = ReloadReport()
        self.reload_problems: list[str] = []
        self.loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> LiveAdmin:
        self._thread.start()
        assert self._up.wait(10), "the admin API did not come up"
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    async def _reload(self, actor: str) -> ReloadReport:
        if self.reload_problems:
            raise ReloadError("the settings are not in order", self.reload_problems)
        return self.reloaded

    def _run(self) -> None:
        self.loop.run_until_complete(self._serve())
        self.loop.close()

    async def _serve(self) -> None:
        app = create_admin_app(
            self.engine,
            prompts_over(self.engine, self._resolved),
            self._resolved,
            drain=self.engine.drain,
            reload=self._reload,
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        with AdminSocket(self.path) as admin:
            await web.SockSite(runner, admin.listener).start()
            self._up.set()
            await self._stop.wait()
            await runner.cleanup()
