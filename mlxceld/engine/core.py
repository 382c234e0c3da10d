"""The engine's work, one step at a time. Runs on the engine thread and owns every array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import mlx.core as mx

from mlxceld.engine import grouping, sharing
from mlxceld.engine.admitter import Admitter
from mlxceld.engine.batch import DecodeBatch, Step
from mlxceld.engine.chunking import ChunkSize
from mlxceld.engine.events import FailureKind, FinishReason
from mlxceld.engine.next_turns import MakeNextTurns, unknown
from mlxceld.engine.output_processor import OutputProcessor
from mlxceld.engine.prefill import group_caches, run_chunk
from mlxceld.engine.prefix_cache import PrefixMemory
from mlxceld.engine.recorder import Recorder
from mlxceld.engine.request_finisher import RequestFinisher
from mlxceld.engine.row_allocator import RowAllocator
from mlxceld.engine.scheduler import Scheduler
from mlxceld.engine.sequence import Phase, Sequence
from mlxceld.engine.shared_reading import SharedReading
from mlxceld.kv import memory, row_caches
from mlxceld.kv.shared_attention import SharingError

if TYPE_CHECKING:
    from mlxceld.engine.probe import BatchVerdict
    from mlxceld.models.loading import LoadedModel

_RELEASE_EVERY_STEPS = 512
"""Growing batches leave freed buffers of odd sizes behind, which nothing reuses."""

_THEIR_CHUNK = 2048
"""Prompt tokens that mlx-lm's own generation computes at once."""

_WORTH_SHARING_EARLY = 128
"""A prompt of which so many tokens were computed is stored before its answer is generated."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the engine does at once: sequences, prompt tokens a chunk, bytes of keys and values.

    The last is for all that runs and is stored together.
    """

    max_batch_size: int
    prefill_chunk: int
    kv_bytes: int


class EngineCore:
    """Sequences, batch and caches, moved on by :meth:`step`.

    What a step tells callers is collected and handed over at once: at the end of the step, or,
    where another decode step follows, when that one is built and about to be started.
    """

    def __init__(
        self,
        model: LoadedModel,
        verdict: BatchVerdict,
        limits: Limits,
        reuse: PrefixMemory,
        recorder: Recorder,
        clock: Callable[[], float],
        make_next_turns: MakeNextTurns = unknown,
    ) -> None:
        self.verdict = verdict
        self._model = model
        self._clock = clock
        self._reuse = reuse
        self._recorder = recorder
        self._scheduler = Scheduler(
            limits.max_batch_size,
            padded_prefill=verdict.padded_prefill,
            grouped_prefill=verdict.batched_decode,
        )
        self._batch = DecodeBatch(model.module, reuse.reading, batched=verdict.batched_decode)
        self._limits = limits
        self._chunks = self._chunk_size()
        self._in_flight: dict[str, Sequence] = {}
        self._pending: Step | None = None
        self._allocator = RowAllocator(
            limits.kv_bytes, reuse, self._batch, self._scheduler, recorder, self.sequences
        )
        self._shared_reading = SharedReading(reuse.reading, self._batch, self.sequences)
        self._answers = OutputProcessor(model.text, recorder)
        # Handed over earlier, the event loop and this thread would contend for the interpreter.
        self._batch.before_start = self._answers.hand_over
        self._endings = RequestFinisher(
            self._in_flight,
            self._scheduler,
            self._batch,
            self._allocator,
            reuse,
            self._answers,
            clock,
        )
        self._admitter = Admitter(
            model,
            self._scheduler,
            self._batch,
            self._allocator,
            reuse,
            self._endings,
            recorder,
            clock,
            make_next_turns,
        )

    def _chunk_size(self) -> ChunkSize:
        if self.verdict.fixed_chunks:
            return ChunkSize(_THEIR_CHUNK, fixed=True)
        return ChunkSize(self._limits.prefill_chunk)

    @property
    def _reads_together(self) -> bool:
        return self.verdict.batched_decode and self._reuse.reading.reads_together

    # What the engine thread asks.

    @property
    def waiting(self) -> int:
        """Sequences that wait for a place in the batch."""
        return self._scheduler.waiting

    @property
    def running(self) -> int:
        """Sequences that are being computed."""
        return len(self._in_flight) - self._scheduler.waiting

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._in_flight) or self._endings.unstored

    @property
    def all_stored(self) -> bool:
        """Whether everything that ended has been offered to the prompt cache."""
        return not self._endings.unstored

    @property
    def longest_chunk_seconds(self) -> float:
        """The longest prefill chunk that ran while a stream was running."""
        return self._chunks.longest_seconds

    def sequences(self) -> list[Sequence]:
        """Every sequence in flight, oldest first."""
        return list(self._in_flight.values())

    def batch_bytes(self) -> int:
        """Bytes that running sequences hold, prompts under way included."""
        return self._allocator.held_bytes()

    def ids(self) -> set[str]:
        """The ids of the requests in flight."""
        return set(self._in_flight)

    def add(self, sequence: Sequence) -> None:
        """Take a sequence; its request has been checked."""
        self._in_flight[sequence.request.id] = sequence
        self._scheduler.add(sequence)

    def cancel(self, request_id: str) -> None:
        """End a sequence at the next step; unknown ids are ignored."""
        sequence = self._in_flight.get(request_id)
        if sequence is not None:
            sequence.cancelled = True

    def step(self) -> None:
        """Do one round of work: at most one decode step and one prefill chunk."""
        try:
            self._reap()
            if self._admitter.due:
                # What ended is stored first, so that who comes next finds it.
                self._answers.hand_over()
                self._break_pipeline()
                self._admitter.admit()
            if self._scheduler.prefilling:
                # A chunk is not overlapped with a step: streams get their tokens before it.
                self._settle()
                self._allocator.before_decode(self._break_pipeline)
                if len(self._batch):
                    self._pending = self._launch()
                    self._break_pipeline()
                self._answers.hand_over()
                self._prefill()
                self._allocator.after_prefill()
            elif len(self._batch):
                self._allocator.before_decode(self._break_pipeline)
                if self._batch.waits_for_tokens:
                    self._break_pipeline()
                launched = self._launch()
                before, self._pending = self._pending, launched
                if before is not None:
                    self._take(before)
            else:
                self._settle()
            if self._pending is None:
                self._endings.store()
        finally:
            if not self._decode_follows():
                self._answers.hand_over()

    def _decode_follows(self) -> bool:
        """Whether the next step only decodes, and begins at once."""
        if self._pending is None or self._endings.unstored or self._scheduler.prefilling:
            return False
        return any(row.num_scheduled_tokens < row.max_tokens for row in self._batch.rows)

    def pause(self) -> None:
        """Finish the step in flight and store what has ended: caches may be changed then."""
        self._break_pipeline()
        self._answers.hand_over()

    def obey(self, verdict: BatchVerdict) -> None:
        """Batch by a new verdict, and read shared blocks as reuse has it now; after :meth:`pause`.

        Rows that are in a batch stay there.
        """
        before, self.verdict = self.verdict, verdict
        if verdict.fixed_chunks != before.fixed_chunks:
            self._chunks = self._chunk_size()
        self._batch.batched = self._scheduler.grouped_prefill = verdict.batched_decode
        self._scheduler.padded_prefill = verdict.padded_prefill
        self._shared_reading.apply()

    def give_back(self) -> None:
        """Return memory after entries have gone; after :meth:`pause`."""
        self._reuse.settle(self.sequences())
        self._batch.find_prefixes()

    def check(self) -> None:
        """Recount what is stored and read; raises AssertionError. After :meth:`pause`."""
        self._reuse.check(self.sequences())

    def fail_all(self, kind: FailureKind, message: str) -> None:
        """End everything in flight with an error and start from nothing."""
        now = self._clock()
        for sequence in self.sequences():
            self._endings.fail(sequence, kind, message, now)
        self._endings.forget()
        self._pending = None
        self._batch.clear()
        mx.clear_cache()
        self._answers.hand_over()

    # The round.

    def _reap(self) -> None:
        """End what was cancelled or has run out of time."""
        now = self._clock()
        ended: list[tuple[Sequence, FinishReason]] = []
        for sequence in self._in_flight.values():
            if sequence.cancelled:
                ended.append((sequence, FinishReason.CANCELLED))
            elif sequence.deadline is not None and now >= sequence.deadline:
                ended.append((sequence, FinishReason.TIMEOUT))
        self._endings.end(ended, now)

    def _prefill(self) -> None:
        streaming = len(self._batch) > 0
        chunk = self._chunks.size(streams_running=streaming)
        readers = self.sequences() if self._reads_together else ()
        for sequence in grouping.alone(self._scheduler.computing(), readers):
            copied = sequence.paged_tokens * self._reuse.token_bytes
            if self._allocator.can_allocate(copied):
                self._admitter.attempt(self._reuse.reading.page_in, sequence)
        group = self._scheduler.next_group(chunk)
        if not group:
            return
        group, caches, merged, sizes = self._run_chunk(group, chunk, streaming=streaming)
        if merged:
            for sequence in group:
                sequence.row = None  # it is in the merged caches now
        if merged and len(group) == 1:
            # Between chunks a sequence has its tail in a row of its own.
            group[0].row = caches = row_caches.extract(caches, 0)
            merged = False
        done = []
        for i, (sequence, size) in enumerate(zip(group, sizes, strict=True)):
            sequence.prefilled += size
            if size:
                at = partial(row_caches.extract, caches, i) if merged else lambda: caches
                self._reuse.on_prefill_progress(sequence, at)
            if sequence.request.stream and not sequence.resumed:
                self._answers.progress(sequence)
            self._admitter.let_go(sequence, reads_together=self._reads_together)
            if not sequence.prefill_left:
                done.append(sequence)
        if done:
            self._start_decoding(done, caches if merged else None)

    def _run_chunk(
        self, group: list[Sequence], chunk: int, *, streaming: bool
    ) -> tuple[list[Sequence], row_caches.Caches, bool, list[int]]:
        """Compute a group's next tokens: see :func:`group_caches`, and each one's number of tokens.

        Its rows stay what they are until that went well, so that it can be done in another way.
        """
        group, caches, merged = group_caches(group, self._reuse.reading)
        row_caches.set_step(caches, self._allocator.step)
        sizes = [self._chunks.part_of(self._until_cut(sequence), chunk) for sequence in group]
        if not max(sizes):
            return group, caches, merged, sizes
        parts = [
            s.known()[s.prefilled : s.prefilled + size]
            for s, size in zip(group, sizes, strict=True)
        ]
        started = self._clock()
        try:
            run_chunk(self._model.module, caches, parts)
        except SharingError as error:
            self._break_pipeline()
            self._shared_reading.fall_back(error)
            return self._run_chunk(group, chunk, streaming=streaming)
        self._recorder.steps += 1
        seconds = self._clock() - started
        self._chunks.record(max(sizes) * len(group), seconds, streams_running=streaming)
        return group, caches, merged, sizes

    def _until_cut(self, sequence: Sequence) -> int:
        """Tokens of a sequence to where its next chunk has to end at the latest."""
        if self.verdict.fixed_chunks and sequence.resumed:
            # It had to make way; the tokens of its answer were computed one by one before.
            prompt_left = len(sequence.prompt) - 1 - sequence.prefilled
            return min(max(1, prompt_left), sequence.prefill_left)
        return sharing.until_shared(sequence)

    def _start_decoding(self, sequences: list[Sequence], caches: row_caches.Caches | None) -> None:
        """Let prefilled sequences into the batch; ``caches`` are theirs where they were merged."""
        now = self._clock()
        self._allocator.note_held()
        for i, sequence in enumerate(sequences):
            self._recorder.background_tokens_computed += sequence.num_recomputed_tokens
            sequence.num_recomputed_tokens = 0
            if sequence.prefilled - sequence.cached >= _WORTH_SHARING_EARLY:
                if caches is not None:
                    # What it was computed into is a row of the group's caches, not its own.
                    sequence.row = row_caches.extract(caches, i)
                self._reuse.share(sequence)
            sequence.phase = Phase.DECODE
            sequence.decode_started_at = sequence.decode_started_at or now
            self._scheduler.remove(sequence)
            self._recorder.account_prefill(sequence)
        if self._reads_together:
            self._allocator.before_joining(sequences, merged=caches is not None)
        self._batch.join(sequences, caches)
        mx.clear_cache()

    def _launch(self) -> Step | None:
        """Start the next decode step, without the rows whose last token is under way already.

        May settle the step in flight: None is pending then.
        """
        full = [row for row in self._batch.rows if row.num_scheduled_tokens >= row.max_tokens]
        if full:
            self._batch.leave(full, self._reuse.should_donate)
        if not len(self._batch):
            return None
        started = self._clock()
        try:
            step = self._batch.launch()
        except SharingError as error:
            self._break_pipeline()
            self._shared_reading.fall_back(error)
            return self._launch()
        step.launch_seconds = self._clock() - started
        self._recorder.steps += 1
        self._recorder.observe("batch_size", len(step.rows))
        if self._recorder.steps % _RELEASE_EVERY_STEPS == 0:
            memory.release_freed()
        return step

    def _settle(self) -> None:
        """Wait for the step in flight, so that none is."""
        step, self._pending = self._pending, None
        if step is not None:
            self._take(step)

    def _break_pipeline(self) -> None:
        """Wait for the step in flight, and store what ended: nothing reads the pool meanwhile."""
        self._settle()
        self._endings.store()

    def _take(self, step: Step) -> None:
        """Give a step's tokens to their rows, and end those that are done."""
        started = self._clock()
        tokens = step.wait()
        now = self._clock()
        self._recorder.longest_decode_step_seconds = max(
            self._recorder.longest_decode_step_seconds, step.launch_seconds + now - started
        )
        ended: list[tuple[Sequence, FinishReason]] = []
        for i, (row, token) in enumerate(zip(step.rows, tokens, strict=True)):
            if row.phase is not Phase.DECODE:
                continue
            try:
                if i in step.failed:
                    raise step.failed[i]
                reason = self._answers.take_token(row, token, step.logprobs.get(i), now)
            except Exception as error:
                self._endings.fault(row, error)
                continue
            if reason is not None:
                ended.append((row, reason))
        self._endings.end(ended, now)
