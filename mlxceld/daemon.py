"""The composition root: settings, listeners, engine and applications, from start to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from aiohttp import web

from mlxceld import __version__
from mlxceld.admin.access import TcpAccess
from mlxceld.admin.app import create_admin_app
from mlxceld.admin.errors import error_response
from mlxceld.admin.listening import AdminListener
from mlxceld.api.app import create_app, prompts_of
from mlxceld.api.errors import refusal
from mlxceld.api.refusals import REFUSALS
from mlxceld.config import ResolvedSettings, Settings, Source
from mlxceld.config.kinds import split_address
from mlxceld.engine.engine import Engine
from mlxceld.inflight import InFlight
from mlxceld.models.heap import use_one_arena
from mlxceld.process.detach import LOG_NAME
from mlxceld.process.exhaustion import ExhaustionHandler
from mlxceld.process.listener import BACKLOG, file_ceiling, local_url
from mlxceld.process.notify import Notifier
from mlxceld.process.permanent import failed_start_exit_code, start_went_well
from mlxceld.process.reopen import StderrFile
from mlxceld.process.report import PATIENCE_SECONDS, ForegroundReport, StartReport
from mlxceld.process.watchdog import engine_moves, keep_watchdog
from mlxceld.reload import Reloader
from mlxceld.resources import Resources, StartupError, acquire, raise_file_limit
from mlxceld.telemetry import logging as log_setup
from mlxceld.telemetry.metrics import Metrics
from mlxceld.telemetry.status import EngineState
from mlxceld.warmup import warm_files
from mlxceld.web.connections import Connections
from mlxceld.web.hosts import HostGuard
from mlxceld.web.lanes import Lanes
from mlxceld.web.runner import Runner

if TYPE_CHECKING:
    from mlxceld.api.prompts import Prompts
    from mlxceld.models.loading import LoadedModel

log = logging.getLogger("mlxceld.daemon")

_FLUSH_SECONDS = 5.0
"""How long handlers may take to send the end of what the drain has cut off."""

_RUNNER: Mapping[str, Any] = {
    "handler_cancellation": True,
    "access_log": None,
    "shutdown_timeout": _FLUSH_SECONDS,
    "keepalive_timeout": 75.0,
}
"""How both applications are served."""

_SWITCH_SECONDS = 0.001
"""After how long a thread hands the interpreter to one that waits, Python's own is 5 ms. A short
request changes threads five times; beside one that renders a large text it waits each time."""

_LOG_CHECK_SECONDS = 60.0
"""How often it is looked whether the log was rotated away."""

_ENGINE_STOP_SECONDS = 15.0
"""How long the engine may take to finish the step that it is in."""

_LOADING_STOP_SECONDS = 3.0
"""The same while it loads, which nothing interrupts; there is nothing to lose then."""


def run(
    resolved: ResolvedSettings,
    *,
    report: StartReport | None = None,
    reread: Callable[[], ResolvedSettings] | None = None,
) -> int:
    """Serve until a signal ends it, and return the exit code.

    ``report`` is told how the start goes; by default only a failure, on standard error. ``reread``
    resolves the settings again for a reload; without it a reload reads only the API keys. Must be
    called on the main thread.
    """
    use_one_arena()
    sys.setswitchinterval(_SWITCH_SECONDS)
    report = report or ForegroundReport()
    settings = resolved.settings
    log_setup.configure(
        settings.log.level, settings.log.format, log_file=settings.state_dir / LOG_NAME
    )
    for line in resolved.notes:
        log.info("%s", line)
    for line in resolved.warnings:
        log.warning("%s", line)
    try:
        resources = acquire(settings)
    except StartupError as error:
        log_setup.flush()
        permanent = error.exit_code == os.EX_CONFIG
        code = failed_start_exit_code(
            str(error), error.exit_code, settings.state_dir, permanent=permanent
        )
        report.failed(str(error), code)
        return code
    try:
        raise_file_limit()
        daemon = Daemon(resolved, resources, report, reread or (lambda: resolved))
        with asyncio.Runner() as runner:
            code = runner.run(daemon.main())
    finally:
        resources.release()
    if not daemon.engine_ended:
        # The thread is inside MLX; the interpreter's own way out would crash on it.
        exit_at_once(code)
    return code


def exit_at_once(code: int) -> None:
    """End the process without waiting for anything but what has been logged."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def load_model(settings: Settings) -> Callable[[Callable[[str], None]], LoadedModel]:
    """The engine's loader: runs on the engine thread, and is the first to import MLX."""

    def load(progress: Callable[[str], None]) -> LoadedModel:
        from mlxceld.models import blas
        from mlxceld.models.requirements import require_mlx

        require_mlx()
        found = blas.interpose()
        log.log(logging.INFO if found.fast else logging.WARNING, "%s", found.text)
        from mlxceld.models.locate import resolve_model

        folder = resolve_model(
            settings.model or "", state_dir=settings.state_dir, progress=progress
        )
        from mlxceld.models.file_limit import file_limit_kept

        with file_limit_kept():
            from mlxceld.models import loading

        model = loading.load_model(
            folder,
            progress=progress,
            special_tokens_in_text=settings.special_tokens_in_text,
        )
        # While the model is probed: the first schema would wait for it a second or two.
        threading.Thread(
            target=model.text.prepare_grammars, name="prepare-grammars", daemon=True
        ).start()
        return model

    return load


class Daemon:
    """One daemon's life on the event loop; everything it holds has been acquired before."""

    def __init__(
        self,
        resolved: ResolvedSettings,
        resources: Resources,
        report: StartReport,
        reread: Callable[[], ResolvedSettings],
    ) -> None:
        self.engine_ended = False
        self._resolved = resolved
        self._settings = resolved.settings
        self._resources = resources
        self._report = report
        self._notifier = Notifier.from_environ()
        given = {n for n, source in resolved.sources.items() if source is not Source.DEFAULT}
        self._engine = Engine(self._settings, load_model(self._settings), given=given)
        self._metrics = Metrics(lambda: self._engine.status)
        self._reloader = Reloader(
            resolved,
            resources.keys,
            reread,
            self._metrics,
            tokens=resources.tokens,
            engine=self._engine,
        )
        self._background: set[asyncio.Task[object]] = set()
        self._in_flight = InFlight()
        self._states: asyncio.Queue[tuple[EngineState, str]] = asyncio.Queue()
        self._stopping = asyncio.Event()
        self._sites: list[web.BaseSite] = []

    async def main(self) -> int:
        """From the first open connection to the last closed one; the exit code."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(ExhaustionHandler())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload_signal)

        def hand_over(state: EngineState, detail: str) -> None:
            loop.call_soon_threadsafe(self._states.put_nowait, (state, detail))

        self._engine.on_state(hand_over)
        async with self._serving() as prompts:
            self._notifier.extend(PATIENCE_SECONDS, "loading")
            self._engine.start()
            code = await self._until_ready()
            self._go_on(self._follow_log())
            if code is None:
                watchdog = asyncio.create_task(keep_watchdog(self._notifier, self._engine_moves))
                if self._settings.warm_files:
                    self._go_on(warm_files(self._engine, prompts, self._settings.warm_files))
                code = await self._until_stopped()
                watchdog.cancel()
            for task in self._background:
                task.cancel()
            await self._end_engine()
        log.info("stopped")
        return code

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[Prompts]:
        """Both applications on their sockets; gives what reads the public one's bodies."""
        lanes = Lanes()
        public = create_app(
            self._engine,
            self._settings,
            self._resources.keys,
            metrics_text=self._metrics.render,
            lanes=lanes,
            refusals=self._metrics.refusals,
        )
        public.middlewares.insert(0, self._in_flight.middleware)
        prompts = prompts_of(public)
        admin = create_admin_app(
            self._engine,
            prompts,
            self._resolved,
            drain=self._drain_only,
            address=self._address,
            access=self._admin_access(),
            reload=self._reloader.reload,
            lanes=lanes.report,
        )
        connections = Connections(file_ceiling)
        for listener in (*self._resources.sockets, *self._resources.admin_sockets):
            listener.gate = connections
        async with contextlib.AsyncExitStack() as running:
            admin_runner = Runner(admin, error_response, connections=connections, **_RUNNER)
            await admin_runner.setup()
            running.push_async_callback(admin_runner.cleanup)
            admin_listener = AdminListener(admin_runner, self._resources.admin)
            await admin_listener.start()
            self._go_on(admin_listener.keep())
            for sock in self._resources.admin_sockets:
                await web.SockSite(admin_runner, sock, backlog=BACKLOG).start()
            runner = Runner(
                public,
                refusal,
                refused=public[REFUSALS].record,
                connections=connections,
                **_RUNNER,
            )
            await runner.setup()
            running.push_async_callback(runner.cleanup)
            for sock in self._resources.sockets:
                site = web.SockSite(runner, sock, backlog=BACKLOG)
                await site.start()
                self._sites.append(site)
            log.info(
                "mlxceld %s listens at %s, admin socket %s",
                __version__,
                self._resources.url,
                self._resources.admin.path,
            )
            if self._resources.admin_sockets:
                log.info("admin API over TCP at %s", self._admin_url())
            yield prompts

    async def _until_ready(self) -> int | None:
        """Wait for the model; the exit code if it comes to that instead."""
        while True:
            following = await self._next_state()
            if following is None:
                self._notifier.stopping("stopped while loading")
                self._report.failed("stopped while loading", 0)
                return 0
            state, detail = following
            if state is EngineState.LOADING:
                log.info("%s", detail)
                self._notifier.extend(PATIENCE_SECONDS, detail)
                self._report.progress(detail)
            elif state is EngineState.READY:
                self._announce()
                return None
            elif state is EngineState.FAILED:
                self._notifier.status(detail)
                log_setup.flush()
                code = failed_start_exit_code(detail, 1, self._settings.state_dir, permanent=True)
                self._report.failed(detail, code)
                return code

    async def _until_stopped(self) -> int:
        """Serve until a signal comes, then drain; the exit code."""
        while (following := await self._next_state()) is not None:
            if following[0] in (EngineState.STOPPED, EngineState.FAILED):
                log.error("the engine has ended by itself; see its traceback above")
                return 1
        await self._drain()
        return 0

    async def _next_state(self) -> tuple[EngineState, str] | None:
        """The engine's next change of state; None if a signal comes first."""
        state = asyncio.create_task(self._states.get())
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({state, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if state.done():
            return state.result()
        state.cancel()
        return None

    def _announce(self) -> None:
        model = self._engine.status.model
        fields = {
            "address": self._resources.url,
            "model": model.id if model is not None else None,
            "device": model.device if model is not None else None,
            "context_length": model.context_length if model is not None else None,
            "pid": os.getpid(),
        }
        status = self._serving_status()
        log.info("%s", status, extra={"fields": fields})
        start_went_well(self._settings.state_dir)
        self._notifier.ready(status)
        self._report.ready(self._resources.url)

    def _serving_status(self) -> str:
        model = self._engine.status.model
        return f"serving {model.id if model is not None else '?'} at {self._resources.url}"

    def _on_stop_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._stopping.is_set():
            log.warning(
                "%s again: ending at once, %d requests cut off", name, self._in_flight.count
            )
            exit_at_once(128 + number)
        log.info("%s: finishing %d requests, taking no more", name, self._in_flight.count)
        self._stopping.set()

    async def _follow_log(self) -> None:
        """Write to where the log is now, after it was rotated; for ever."""
        log_file = StderrFile()
        while log_file.path is not None:
            await asyncio.sleep(_LOG_CHECK_SECONDS)
            if log_file.follow():
                log.info("the log was moved; this one is new")

    def _on_reload_signal(self) -> None:
        ready = self._engine.status.state is EngineState.READY
        if ready:
            self._notifier.reloading()

        async def reload() -> None:
            await self._reloader.on_signal("SIGHUP")
            if ready:
                self._notifier.ready(self._serving_status())

        self._go_on(reload())

    def _go_on(self, work: Coroutine[object, object, object]) -> None:
        """Do something beside what the daemon is at; it ends with the daemon."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _drain_only(self) -> None:
        log.info("draining: no more requests are taken")
        self._notifier.status("draining")
        self._engine.drain()

    async def _drain(self) -> None:
        """Take no more connections and finish what runs, up to the limit."""
        limit = self._settings.drain_timeout
        self._notifier.stopping(f"finishing {self._in_flight.count} requests")
        self._notifier.extend(limit + _ENGINE_STOP_SECONDS + 2 * _FLUSH_SECONDS, "draining")
        for site in self._sites:
            await site.stop()
        self._engine.drain()
        try:
            await asyncio.wait_for(self._in_flight.over(), limit)
        except TimeoutError:
            log.warning("%d requests run after %g s and are cut off", self._in_flight.count, limit)
        if dropped := self._in_flight.drop_arriving():
            log.info("%d connections with a part of a request are closed", dropped)

    async def _end_engine(self) -> None:
        loading = self._engine.status.state is EngineState.LOADING
        limit = _LOADING_STOP_SECONDS if loading else _ENGINE_STOP_SECONDS
        self.engine_ended = await asyncio.to_thread(self._engine.stop, limit)
        if not self.engine_ended:
            log.warning("the engine has not ended within %g s", limit)

    def _engine_moves(self) -> bool:
        period = self._notifier.watchdog_seconds or 0.0
        return engine_moves(self._engine.status, time.monotonic(), period)

    def _admin_access(self) -> TcpAccess | None:
        tokens, listen_at = self._resources.tokens, self._settings.admin.listen
        if tokens is None or listen_at is None:
            return None
        host, _ = split_address(listen_at)
        return TcpAccess(tokens, HostGuard(host, self._settings.allowed_hosts, ()))

    def _admin_url(self) -> str:
        host, _ = split_address(self._settings.admin.listen or "")
        return local_url(host, self._resources.admin_sockets)

    def _address(self) -> tuple[str, int]:
        return self._settings.host, int(self._resources.sockets[0].getsockname()[1])
