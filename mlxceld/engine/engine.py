"""The engine thread: loads the model, owns MLX, and does what callers ask between its steps."""

from __future__ import annotations

import gc
import logging
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlxceld.engine import power
from mlxceld.engine.admission import token_limit
from mlxceld.engine.cache_admin import CacheAdmin, Loaded
from mlxceld.engine.cache_client import CacheClient
from mlxceld.engine.configured_cache import make_prompt_cache
from mlxceld.engine.errors import InvalidRequestError, NotReadyError, QueueFullError
from mlxceld.engine.events import FailureKind
from mlxceld.engine.inbox import Inbox
from mlxceld.engine.next_turns import MakeNextTurns, unknown
from mlxceld.engine.publisher import Publisher
from mlxceld.engine.reuse_plan import ReuseKind
from mlxceld.engine.sequence import Sequence
from mlxceld.engine.stream import EventStream
from mlxceld.engine.verdict_file import VerdictFile
from mlxceld.models.blas_threads import GovernorThread, start_governor
from mlxceld.prompt_cache.rejects import RejectLog
from mlxceld.prompt_cache.trace import Trace
from mlxceld.telemetry.status import EngineState, EngineStatus

if TYPE_CHECKING:
    from mlxceld.config import Settings
    from mlxceld.engine.capacities import CapacityPlan
    from mlxceld.engine.commands import Command
    from mlxceld.engine.core import EngineCore
    from mlxceld.engine.prefetch import Prefetcher
    from mlxceld.engine.request import GenerationRequest, NextTurn
    from mlxceld.models.budgets import Capacities
    from mlxceld.models.loading import LoadedModel
    from mlxceld.models.text import TextCodec

log = logging.getLogger(__name__)

Loader = Callable[[Callable[[str], None]], "LoadedModel"]
StateListener = Callable[[EngineState, str], None]

_IDLE_SWEEP_SECONDS = 30.0
"""How often an idle engine looks for entries that have outlived their time, and how long after
the last step it gives memory back and recounts what is stored."""


class Engine:
    """Runs :class:`EngineCore` on a thread of its own.

    Public methods may be called from any thread, :meth:`submit` from an event loop's. The lock
    guards the inbox only and is never held while the engine works, so no caller waits for a step.
    """

    def __init__(
        self,
        settings: Settings,
        loader: Loader,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        draw_seed: Callable[[], int] = lambda: secrets.randbits(63),
        given: Collection[str] = (),
        on_battery: Callable[[], bool] = power.on_battery,
    ) -> None:
        """``given`` names the settings that the operator has set; no model changes those."""
        trace = Trace(wall_clock_ms, enabled=settings.apc.trace)
        rejects = RejectLog(wall_clock_ms)
        # Its budget is what is told until a model has decided how its prompts are kept.
        self._prompt_cache = make_prompt_cache(settings, clock, trace.emit, rejects)
        self._settings = settings
        self._publisher = Publisher(settings, self._prompt_cache, trace, clock)
        self._state = EngineState.LOADING
        self._loaded: Loaded | None = None
        self._admin = CacheAdmin(
            lambda: self._loaded, self._publisher, lambda: self._publish(force=True)
        )
        self.cache = CacheClient(self._put_command, trace, self._publisher.trace_switched)
        self._given = given
        self._power = power.PowerSource(clock, on_battery)
        self._loader = loader
        self._clock = clock
        self._draw_seed = draw_seed
        self._inbox = Inbox()
        self._ids: set[str] = set()
        self._queue_rejections = 0
        self._turned_away: Counter[str] = Counter()
        self._next_seq_id = 1
        self._listeners: list[StateListener] = []
        self._make_next_turns: MakeNextTurns = unknown
        self._prefetcher: Prefetcher | None = None
        self._capacity_plan: CapacityPlan | None = None
        self._governor: GovernorThread | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # Life.

    def start(self) -> None:
        """Start the thread; it loads the model first."""
        self._thread.start()

    def on_state(self, listener: StateListener) -> None:
        """Call ``listener(state, detail)`` on the engine thread at every change of state."""
        self._listeners.append(listener)

    def drain(self) -> None:
        """Take no more requests; those accepted run on."""
        with self._inbox.lock:
            self._inbox.draining = True
            self._inbox.lock.notify()

    def stop(self, timeout: float | None = None) -> bool:
        """Fail what is in flight, end the thread and release MLX; False if it did not end."""
        with self._inbox.lock:
            self._inbox.draining = self._inbox.stopping = True
            self._inbox.lock.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    # What callers see and ask.

    @property
    def status(self) -> EngineStatus:
        """The newest published state; never waits."""
        return self._publisher.status

    @property
    def text(self) -> TextCodec:
        """The loaded model's tokenizer; raises NotReadyError until the model is loaded."""
        if self._loaded is None:
            raise NotReadyError(f"the model is {self._state.value}")
        return self._loaded.model.text

    def capacities(self, settings: Settings, given: Collection[str]) -> Capacities:
        """What the stores may hold with the loaded model and these settings.

        ``given`` names those that the operator has set. Raises NotReadyError until a model is
        loaded.
        """
        if self._capacity_plan is None:
            raise NotReadyError(f"the engine is {self._state.value}")
        return self._capacity_plan.capacities(settings, given)

    def submit(self, requests: Seq[GenerationRequest]) -> list[EventStream]:
        """Queue requests, all or none, and return their event streams in order.

        Raises QueueFullError, NotReadyError, InvalidRequestError or ContextLengthError; then
        nothing was queued.
        """
        loaded = self._loaded
        draining = self._inbox.draining
        if loaded is None or self._state is not EngineState.READY or draining:
            ready = self._state is EngineState.READY
            state = EngineState.DRAINING if ready and draining else self._state
            raise NotReadyError(f"the engine is {state.value}")
        limits = [token_limit(request, loaded.model.status) for request in requests]
        now = self._clock()
        with self._inbox.lock:
            # Everything in flight counts, so that the limit does not hang on how quickly the
            # engine gives out the places in its batch.
            places, limit = self._settings.max_batch_size, self._settings.max_queue
            if len(self._ids) + len(requests) > places + limit:
                self._queue_rejections += len(requests)
                self._turned_away.update(request.endpoint for request in requests)
                waiting = max(0, len(self._ids) - places)
                raise QueueFullError(waiting, limit, self._publisher.retry_after())
            known = [r.id for r in requests if r.id in self._ids]
            if known or len({r.id for r in requests}) < len(requests):
                raise InvalidRequestError("id", f"a request {known or 'twice'} is in flight")
            sequences, streams = [], []
            for request, max_tokens in zip(requests, limits, strict=True):
                seed = request.sampling.seed
                streams.append(EventStream(request.id, self.cancel))
                sequences.append(
                    Sequence(
                        seq_id=self._next_seq_id,
                        request=request,
                        stream=streams[-1],
                        submitted_at=now,
                        deadline=now + request.timeout if request.timeout else None,
                        max_tokens=max_tokens,
                        seed=seed if seed is not None else self._draw_seed(),
                    )
                )
                self._next_seq_id += 1
            self._ids.update(r.id for r in requests)
            self._inbox.asked.submitted.extend(sequences)
            self._inbox.lock.notify()
        return streams

    def foretell_with(self, make: MakeNextTurns) -> None:
        """See :class:`EngineClient`."""
        self._make_next_turns = make

    def cancel(self, request_id: str) -> bool:
        """Stop a request within one step; False if none of that id is in flight."""
        with self._inbox.lock:
            if request_id not in self._ids:
                return False
            self._inbox.asked.cancelled.append(request_id)
            self._inbox.lock.notify()
        return True

    def prefetch(self, turn: NextTurn) -> None:
        """Compute ahead what a conversation's next turn will begin with, when there is time.

        Raises NotReadyError where no requests are taken.
        """
        with self._inbox.lock:
            if self._state is not EngineState.READY or self._inbox.draining:
                raise NotReadyError(f"the engine is {self._state.value}")
            self._inbox.asked.offered.append(turn)
            self._inbox.lock.notify()

    def _put_command(self, command: Command, future: Future[Any]) -> None:
        with self._inbox.lock:
            if self._state in (EngineState.STOPPED, EngineState.FAILED):
                raise NotReadyError(f"the engine is {self._state.value}")
            self._inbox.asked.commands.append((command, future))
            self._inbox.lock.notify()

    # The thread.

    def _run(self) -> None:
        try:
            if self._load():
                self._serve()
        finally:
            self._close()

    def _load(self) -> bool:
        try:
            model = self._loader(self._report_loading)
            self._governor = start_governor()
            # Imported here: this module is imported by code that must not load MLX.
            from mlxceld.engine.checks import Checks
            from mlxceld.engine.setup import make_core, make_prefetcher, make_reuse, plan_stores

            settings = self._settings
            reuse_plan, budget, plan, capacities = plan_stores(
                model, settings, self._given, self._prompt_cache
            )
            self._publisher.capacities = capacities
            self._capacity_plan = plan
            checks = Checks(
                model, settings, VerdictFile(settings.state_dir), progress=self._report_check
            )
            reuse = make_reuse(model, settings, reuse_plan, budget, self._prompt_cache, checks)
            core, status = make_core(
                model,
                settings,
                budget,
                reuse,
                self._publisher.recorder,
                self._clock,
                checks,
                lambda request: self._make_next_turns(request),
            )
            self._publisher.reuse = reuse
            loaded = Loaded(replace(model, status=status), core, reuse, self._prompt_cache, checks)
            if reuse_plan.kind is not ReuseKind.NONE:
                self._admin.check_reuse(loaded)
            else:
                checks.keep()
                self._publisher.model = status
            self._loaded = loaded
            self._prefetcher = make_prefetcher(
                model, settings, budget, reuse, core.sequences, self._power
            )
            self._publisher.prefetch = self._prefetcher.counters
        except Exception as error:
            log.debug("the model failed to load", exc_info=True)
            self._enter(EngineState.FAILED, str(error) or type(error).__name__)
            return False
        # What is loaded stays. A full collection would look through all of it, and every thread
        # would wait for a tenth of a second or two.
        gc.collect()
        gc.freeze()
        self._enter(EngineState.READY, "")
        return True

    def _sweep(self) -> int:
        """Drop what has outlived its time from all stores; returns how many entries went."""
        return self._prompt_cache.sweep()

    def _report_loading(self, line: str) -> None:
        self._enter(EngineState.LOADING, line)

    def _report_check(self, line: str) -> None:
        # Once it serves, a check is an order like others.
        if self._state is EngineState.LOADING:
            self._enter(EngineState.LOADING, line)

    def _serve(self) -> None:
        loaded, prefetcher = self._loaded, self._prefetcher
        if loaded is None or prefetcher is None:
            raise RuntimeError("serving before a model is loaded")
        core = loaded.core
        worked_at: float | None = None
        while self._take_inbox(core, prefetcher):
            if core.busy:
                self._step(core)
                worked_at = self._clock()
            elif prefetcher.pending:
                # One chunk, and then whoever has come meanwhile goes first.
                prefetcher.step()
                worked_at = self._clock()
            else:
                if self._sweep():
                    self._give_back(core)
                if worked_at is not None and self._clock() - worked_at >= _IDLE_SWEEP_SECONDS:
                    worked_at = None
                    self._tidy(core)
            self._publish()
        core.fail_all(FailureKind.SHUTDOWN, "the daemon is shutting down")
        self._publisher.recorder.write_lines()

    def _step(self, core: EngineCore) -> None:
        started, faults = self._clock(), self._publisher.faults_in_a_row
        ended_before = self._publisher.recorder.ended_well
        try:
            core.step()
        except Exception as error:
            log.exception("engine fault; what was running has failed")
            self._publisher.fault(error)
            core.fail_all(FailureKind.ENGINE, f"the engine failed: {type(error).__name__}: {error}")
        else:
            if faults and self._publisher.recorder.ended_well > ended_before:
                self._publisher.clear_faults()
        self._note_sharing()
        self._publisher.recorder.observe("engine_step_seconds", self._clock() - started)
        if core.all_stored:
            self._publisher.recorder.write_lines()

    def _note_sharing(self) -> None:
        """Tell and keep that shared blocks are read in another way than a check had found."""
        loaded = self._loaded
        sharing = None if loaded is None else loaded.reuse.reading.sharing
        if loaded is None or sharing is None:
            return
        status = loaded.model.status
        if sharing.mode != status.sharing:
            loaded.checks.sharing_failed(sharing)
            status = replace(status, sharing=sharing.mode, sharing_reason=sharing.reason)
            loaded.model, self._publisher.model = replace(loaded.model, status=status), status

    def _tidy(self, core: EngineCore) -> None:
        """Give memory back and recount what is stored, once after work.

        What does not add up is an engine fault.
        """
        self._give_back(core)
        try:
            core.check()
        except AssertionError as error:
            log.exception("integrity check failed")
            self._publisher.fault(error)

    def _give_back(self, core: EngineCore) -> None:
        """Return memory to the system; the engine goes on where that fails."""
        try:
            core.give_back()
        except Exception as error:
            log.exception("memory could not be given back")
            self._publisher.fault(error)

    def _take_inbox(self, core: EngineCore, prefetcher: Prefetcher) -> bool:
        """Wait for work if there is none, and take in what was asked; False to end."""
        waits = not (core.busy or prefetcher.pending)
        if waits and self._governor is not None:
            self._governor.computing(False)
        asked = self._inbox.take(
            idle=not core.busy,
            waits=waits,
            drain_is_news=self._state is EngineState.READY,
            seconds=_IDLE_SWEEP_SECONDS,
        )
        if waits and self._governor is not None:
            self._governor.computing(True)
        if asked.draining and self._state is EngineState.READY:
            self._enter(EngineState.DRAINING, "")
        for sequence in asked.submitted:
            prefetcher.overtaken(sequence.request)
            core.add(sequence)
        if asked.submitted:
            prefetcher.interrupt()
        for turn in asked.offered:
            prefetcher.offer(turn)
        for request_id in asked.cancelled:
            core.cancel(request_id)
        for command, future in asked.commands:
            self._carry_out(command, future)
        return not asked.stopping

    def _carry_out(self, command: Command, future: Future[Any]) -> None:
        """Give a future its command's report, unless its caller has given up."""
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(self._admin.run(command))
        except Exception as error:
            future.set_exception(error)

    def _publish(self, *, force: bool = False) -> None:
        if self._loaded is None:
            return
        core = self._loaded.core
        with self._inbox.lock:
            # What is in the inbox counts as waiting: it has been accepted.
            submitted = self._inbox.asked.submitted
            self._ids = core.ids() | {s.request.id for s in submitted}
            queued = core.waiting + len(submitted)
            rejections = self._queue_rejections
            turned_away = dict(self._turned_away)
        self._publisher.publish(
            self._state,
            core,
            queued=queued,
            queue_rejections=rejections,
            turned_away=turned_away,
            force=force,
        )

    def _enter(self, state: EngineState, detail: str) -> None:
        self._state = state
        self._publisher.state(state, detail)
        for listener in self._listeners:
            listener(state, detail)

    def _close(self) -> None:
        """Let go of every array on the thread that made it, then of MLX's streams.

        Without the latter the process aborts at exit.
        """
        if self._governor is not None:
            self._governor.close()
        # What was loaded goes; so may what of it is in cycles.
        gc.unfreeze()
        failed = self._state is EngineState.FAILED
        self._loaded = self._publisher.reuse = self._prefetcher = None
        self._prompt_cache.close()
        with self._inbox.lock:
            asked = self._inbox.take_now()
            if not failed:
                self._state = EngineState.STOPPED
        for command, future in asked.commands:
            self._carry_out(command, future)
        if "mlx.core" in sys.modules:
            from mlxceld.kv.memory import release_mlx

            release_mlx()
        if not failed:
            self._enter(EngineState.STOPPED, "")
