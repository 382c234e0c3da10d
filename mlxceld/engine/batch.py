"""The sequences that are generating, and their next token.

A *lane* is a set of caches with the rows that live in them. Usually there is one lane for the
whole batch; where a model cannot be batched every row has a lane of its own, and so has a row
that does not fit the others. One step runs each lane's forward pass and samples over all rows
together.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlxceld.engine.sampling import LogprobArrays, logprobs_of, masked
from mlxceld.engine.sequence import Sequence
from mlxceld.kv import row_caches, shared_attention
from mlxceld.kv.host import as_ints
from mlxceld.kv.rewind import mark, rewind
from mlxceld.kv.row_caches import Caches
from mlxceld.kv.shared_attention import SharingError
from mlxceld.kv.shared_prefix import order_by_table

if TYPE_CHECKING:
    from mlxceld.engine.row_reading import RowReading

_SHORT_OF_MEMORY_STEP = 16

_NOT_NUMBERS = (
    "the model's logits are not numbers (NaN or infinite): its weights are damaged, or their type"
    " has too small a range for this prompt"
)


@dataclass(slots=True)
class Lane:
    """Caches with their rows. ``merged`` tells a batch's caches from a single row's plain ones.

    ``inputs`` is an int array of shape (rows,): each row's next token to feed. With ``tails`` the
    caches may be bound to what their rows read from the pool.
    """

    caches: Caches
    rows: list[Sequence]
    inputs: mx.array
    merged: bool
    tails: bool = False

    def merge(self, *, tails: bool) -> None:
        """Make a batch's caches of a single row's, and such that can be bound where wanted."""
        if not self.merged:
            before = [row.paged_tokens for row in self.rows]
            self.caches = (
                shared_attention.merge([self.caches], before)
                if tails
                else row_caches.merge([self.caches])
            )
            self.merged = True
        elif tails:
            self.caches = shared_attention.as_shared(self.caches)
        self.tails = self.tails or tails


@dataclass(slots=True)
class Step:
    """One decode step under way: which rows it covers and, once evaluated, their tokens.

    ``checked`` is ``tokens``, and minus one where a row's logits are not numbers: both come to the
    host in one read. ``launch_seconds`` is how long it took to build and hand over; MLX on a CPU
    computes most of it within that time already.
    """

    rows: list[Sequence]
    tokens: mx.array
    checked: mx.array
    logprobs: dict[int, LogprobArrays] = field(default_factory=dict)
    failed: dict[int, Exception] = field(default_factory=dict)
    launch_seconds: float = 0.0

    def wait(self) -> list[int]:
        """Block until the step is computed; return its tokens, row by row.

        A row whose logits are not numbers is marked failed: its token means nothing.
        """
        tokens = as_ints(self.checked)
        for i, token in enumerate(tokens):
            if token < 0:
                self.failed.setdefault(i, ArithmeticError(_NOT_NUMBERS))
        return tokens


class DecodeBatch:
    """Every sequence in its decode phase.

    ``before_start`` is called when a step has been built and is about to be started.
    """

    def __init__(self, module: Any, reading: RowReading, *, batched: bool) -> None:
        self._module = module
        self._reading = reading
        self.batched = batched
        self._lanes: list[Lane] = []
        self.step = 256
        self.before_start: Callable[[], None] = lambda: None

    @property
    def rows(self) -> list[Sequence]:
        """The rows, lane by lane: the order of a step."""
        return [row for lane in self._lanes for row in lane.rows]

    def __len__(self) -> int:
        return sum(len(lane.rows) for lane in self._lanes)

    @property
    def waits_for_tokens(self) -> bool:
        """Whether a row's next token depends on the value of its last: it has a constraint."""
        return any(row.constraint is not None for row in self.rows)

    def nbytes(self) -> int:
        """Bytes that the lanes' caches hold."""
        return sum(row_caches.nbytes(lane.caches) for lane in self._lanes)

    def growth(self) -> int:
        """Bytes by which the next step makes the lanes' caches larger; 0 for most steps."""
        return sum(row_caches.growth(lane.caches) for lane in self._lanes)

    def grow_less(self) -> None:
        """Let the rows grow by few tokens at a time from now on: more copies, less unused room."""
        for lane in self._lanes:
            row_caches.set_step(lane.caches, _SHORT_OF_MEMORY_STEP)

    def join(self, sequences: Seq[Sequence], caches: Caches | None) -> None:
        """Let prefilled sequences in: a merged group with its caches, or one with its own row."""
        inputs = mx.array([sequence.next_input for sequence in sequences])
        own = sequences[0].row or []
        lane = Lane(own if caches is None else caches, list(sequences), inputs, caches is not None)
        for sequence in sequences:
            sequence.row = None
        if not (self.batched and any(self._join(into, lane) for into in self._lanes)):
            if any(row.block_table for row in lane.rows):
                lane.merge(tails=True)
            self._lanes.append(lane)
        for into in self._lanes:
            row_caches.set_step(into.caches, self.step)
        self.find_prefixes()

    @staticmethod
    def _join(into: Lane, lane: Lane) -> bool:
        """Let a lane's rows into another; False if they do not fit."""
        if not row_caches.fit(into.caches, lane.caches):
            return False
        shares = any(row.block_table for part in (into, lane) for row in part.rows)
        for part in (into, lane):
            part.merge(tails=shares)
        if not row_caches.extend(into.caches, lane.caches):
            return False
        into.rows.extend(lane.rows)
        into.inputs = mx.concatenate([into.inputs, lane.inputs])
        return True

    def find_prefixes(self) -> None:
        """See anew what the rows read from the pool, those that begin alike side by side."""
        for lane in self._lanes:
            if not lane.tails:
                continue
            order = order_by_table([row.block_table for row in lane.rows])
            if order != sorted(order):
                row_caches.keep_rows(lane.caches, order)
                lane.rows = [lane.rows[i] for i in order]
                lane.inputs = lane.inputs[mx.array(order)]
            prefix = self._reading.prefix_of(lane.rows)
            shared_attention.bind(lane.caches, prefix, gathers=self._reading.gathers)

    def launch(self) -> Step:
        """Build the next step and start computing it; returns without waiting.

        Each row is fed its newest token, known or still being computed by the step before. An
        exception while sampling one row marks that row failed and leaves the others alone.

        Raises SharingError where the model cannot read what rows share; all is as before then.
        """
        rows = self.rows
        positions: list[mx.array] = []
        for lane in self._lanes:
            row_caches.share_offsets(lane.caches)
            positions.extend(row_caches.positions(lane.caches))
        logits = self._logits()
        tokens = self._sampled(rows, logits)
        step = Step(rows, tokens, tokens)
        self._sample_special_rows(step, logits)
        step.checked = _checked(step.tokens, logits)
        at = 0
        for lane in self._lanes:
            count = len(lane.rows)
            lane.inputs = step.tokens if count == len(rows) else step.tokens[at : at + count]
            at += count
        for row in rows:
            row.num_scheduled_tokens += 1
        pending = [step.checked, *positions]
        for logprobs in step.logprobs.values():
            pending.extend(logprobs.arrays())
        self.before_start()
        mx.async_eval(pending)  # type: ignore[no-untyped-call]
        return step

    def _logits(self) -> mx.array:
        """Each row's next logits ``[rows, vocab]``, to be computed."""
        shares = any(shared_attention.shares(lane.caches) for lane in self._lanes)
        marks = [one for lane in self._lanes for one in mark(lane.caches)] if shares else []
        try:
            return mx.concatenate([self._forward(lane)[:, -1, :] for lane in self._lanes])
        except SharingError:
            rewind(marks)
            raise

    def _forward(self, lane: Lane) -> mx.array:
        tokens = lane.inputs[:, None]
        if shared_attention.shares(lane.caches):
            return shared_attention.run(self._module, tokens, lane.caches)
        logits: mx.array = self._module(tokens, cache=lane.caches)
        return logits

    def leave(self, rows: Seq[Sequence], keep_row: Callable[[Sequence], bool]) -> None:
        """Take rows out; those for which ``keep_row`` holds carry their own caches with them."""
        gone = set(rows)
        for lane in self._lanes:
            staying = [i for i, row in enumerate(lane.rows) if row not in gone]
            if len(staying) == len(lane.rows):
                continue
            for i, row in enumerate(lane.rows):
                if row in gone and keep_row(row):
                    row.row = row_caches.extract(lane.caches, i) if lane.merged else lane.caches
            if staying:
                row_caches.keep_rows(lane.caches, staying)
                lane.inputs = lane.inputs[mx.array(staying)]
            lane.rows = [lane.rows[i] for i in staying]
        self._lanes = [lane for lane in self._lanes if lane.rows]
        if gone:
            self.find_prefixes()

    def clear(self) -> None:
        """Forget every row and its caches."""
        self._lanes = []

    @staticmethod
    def _sampled(rows: list[Sequence], logits: mx.array) -> mx.array:
        if all(row.sampler is not None and not row.sampler.is_argmax for row in rows):
            return mx.zeros(len(rows), dtype=mx.uint32)
        return mx.argmax(logits, axis=-1)

    def _sample_special_rows(self, step: Step, logits: mx.array) -> None:
        """Redraw the rows that are not a plain argmax, and collect what was asked of each."""
        redrawn: dict[int, mx.array] = {}
        for i, row in enumerate(step.rows):
            sampler, want = row.sampler, row.request.sampling.logprobs
            constraint = row.constraint
            if sampler is None or (sampler.is_argmax and want is None and constraint is None):
                continue
            try:
                allowed = logits[i : i + 1]
                if constraint is not None:
                    allowed = masked(allowed, constraint.mask())
                if constraint is not None or not sampler.is_argmax:
                    redrawn[i] = sampler.sample(
                        allowed, row.prompt, self._history(row, i), row.num_scheduled_tokens
                    ).astype(mx.uint32)
                if want is not None:
                    picked = redrawn[i] if i in redrawn else step.tokens[i : i + 1]
                    step.logprobs[i] = logprobs_of(logits[i : i + 1], picked, want)
            except Exception as error:
                step.failed[i] = error
        if redrawn:
            step.tokens = mx.concatenate(
                [
                    redrawn[i] if i in redrawn else step.tokens[i : i + 1]
                    for i in range(len(step.rows))
                ]
            )

    def _history(self, row: Sequence, index: int) -> mx.array:
        """The row's generated tokens, the one still being computed included."""
        known = mx.array(row.generated, dtype=mx.int32)
        if row.num_scheduled_tokens == len(row.generated) or (
            row.sampler is None or not row.sampler.wants_history
        ):
            return known
        inputs = mx.concatenate([lane.inputs for lane in self._lanes])
        return mx.concatenate([known, inputs[index : index + 1].astype(mx.int32)])


def _checked(tokens: mx.array, logits: mx.array) -> mx.array:
    """Tokens ``[rows]``, and minus one where a row of logits ``[rows, vocab]`` has no numbers.

    The largest logit is not finite if any is NaN or plus infinity; minus infinity, with which some
    models rule tokens out, does not show.
    """
    return mx.where(mx.isfinite(mx.max(logits, axis=-1)), tokens.astype(mx.int32), -1)
