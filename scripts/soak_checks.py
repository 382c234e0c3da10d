"""What has to hold at the end of a soak, and now and then within it."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from soak_dialects import ENDPOINTS
from soak_load import Outcome

Stats = Mapping[str, Any]
Line = Mapping[str, Any]

_PARTS = 20

_ENDED_WELL = ("stop", "length")


@dataclass(frozen=True)
class Check:
    """One thing that has to hold; ``detail`` says what was found."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Sample:
    """Memory in bytes after ``requests`` requests: the process's share, and in MLX's arrays."""

    requests: int
    process: int
    active: int


@dataclass(frozen=True)
class Trend:
    """A line through samples by least squares.

    ``slope`` is bytes a request, ``error`` its standard error, ``mean`` bytes, ``rise`` the bytes
    that the line gains over all of the samples.
    """

    slope: float
    error: float
    mean: float
    rise: float

    def flat(self, most: float) -> bool:
        """Whether the rise is at most that share of the mean, or no more than noise."""
        return self.rise <= most * self.mean or self.slope <= 2 * self.error

    def __str__(self) -> str:
        share = 100 * self.slope * 1000 / self.mean if self.mean else 0.0
        return (
            f"{self.slope * 1000:+,.0f} ± {2 * self.error * 1000:,.0f} bytes a 1,000 requests"
            f" ({share:+.3f}% of {self.mean / 2**20:.1f} MiB)"
        )


def trend(points: Sequence[tuple[float, float]]) -> Trend:
    """The line through (requests, bytes); at least three points with different requests."""
    xs, ys = [float(x) for x, _ in points], [float(y) for _, y in points]
    line = statistics.linear_regression(xs, ys)
    left = sum((y - line.intercept - line.slope * x) ** 2 for x, y in points)
    middle = statistics.fmean(xs)
    spread = sum((x - middle) ** 2 for x in xs)
    error = (left / (len(xs) - 2) / spread) ** 0.5
    return Trend(line.slope, error, statistics.fmean(ys), line.slope * (xs[-1] - xs[0]))


def memory_is_flat(samples: Sequence[Sample], most: float) -> list[Check]:
    """Over the last 80% of the requests, in twenty parts of it.

    Parts, since what one sample finds the next one does too. Their least tells memory that is lost
    from memory that the allocator keeps for a while.
    """
    last = samples[-1].requests if samples else 0
    late = [sample for sample in samples if sample.requests >= last * 0.2]
    size = max(1, len(late) // _PARTS)
    parts = [late[at : at + size] for at in range(0, len(late) - size + 1, size)]
    middles = [round(statistics.fmean(s.requests for s in part)) for part in parts]
    if len(set(middles)) < 3:
        return [Check("memory", False, f"{len(late)} samples are too few")]
    found: dict[str, list[float]] = {
        "memory of the process": [statistics.fmean(s.process for s in part) for part in parts],
        "the same at its least": [min(s.process for s in part) for part in parts],
        "memory in MLX's arrays": [statistics.fmean(s.active for s in part) for part in parts],
    }
    lines = {name: trend(list(zip(middles, ys, strict=True))) for name, ys in found.items()}
    return [Check(name, line.flat(most), str(line)) for name, line in lines.items()]


def ttft_is_level(outcomes: Sequence[Outcome], most: float = 1.1) -> Check:
    """The median of the last tenth against that of the second."""
    name = "time to first token"
    times = [outcome.ttft for outcome in outcomes if outcome.ttft is not None]
    tenth = len(times) // 10
    if not tenth:
        return Check(name, False, f"{len(times)} streams are too few")
    second, last = times[tenth : 2 * tenth], times[-tenth:]
    ratio = statistics.median(last) / statistics.median(second)
    return Check(name, ratio <= most, f"p50 of the last tenth is {ratio:.3f} of the second's")


def stats_add_up(stats: Stats) -> str:
    """What in one reading of the cache's statistics does not add up; empty if all does."""
    gone = sum(stats[f"evictions_{why}"] for why in ("lru", "ttl", "flush", "resize"))
    snapshots_gone = sum(
        stats[f"snapshot_evictions_{why}"] for why in ("lru", "ttl", "flush", "resize")
    )
    kinds = sum(stats[f"snapshot_entries_{kind}"] for kind in ("head", "boundary", "completion"))
    sums = {
        "lookups": stats["hits"] + stats["misses"],
        "inserts": stats["entries"] + gone + stats["consumed"] + stats["replaced"],
        "snapshot_lookups": stats["snapshot_hits"] + stats["snapshot_misses"],
        "snapshot_inserts": stats["snapshot_entries"]
        + snapshots_gone
        + stats["snapshot_supersedes"]
        + stats["snapshot_replaced"],
        "prompt_tokens": stats["prompt_tokens_computed"] + stats["prompt_tokens_reused"],
        "paged_blocks_allocated": stats["paged_blocks_live"] + stats["paged_blocks_free"],
        "reject_oversized": stats["rejections_oversized"] + stats["snapshot_rejections_oversized"],
    }
    wrong = [
        f"{name} is {stats[name]}, not {value}"
        for name, value in sums.items()
        if stats[name] != value
    ]
    if kinds > stats["snapshot_entries"]:
        wrong.append(f"{kinds} snapshots by kind, {stats['snapshot_entries']} in all")
    return "; ".join(wrong)


def log_agrees(outcomes: Iterable[Outcome], lines: Sequence[Line]) -> list[str]:
    """Where the daemon's line of a request is not what its client was told; each has one line.

    A client that left may have none, if it left before its request was read.
    """
    by_id: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_id[line["id"]].append(line)
    wrong = []
    for outcome in outcomes:
        ids = [outcome.request_id]
        if outcome.sequences != 1:
            ids = [f"{outcome.request_id}-{i}" for i in range(outcome.sequences)]
        found = [by_id.pop(i, []) for i in ids]
        if outcome.problem:
            continue
        text = _disagreement(outcome, found)
        if text:
            wrong.append(f"{outcome.request_id} ({outcome.kind}): {text}")
    # What the daemon computes of its own accord, a warmed prompt, has ids of its own.
    strangers = [i for i in by_id if i.startswith("soak-")]
    return [*wrong, *(f"{i} is logged, and nobody asked it" for i in strangers)]


def _disagreement(outcome: Outcome, found: Sequence[Sequence[Line]]) -> str:
    counts = [len(lines) for lines in found]
    if outcome.ended == "left" and max(counts) <= 1:
        return ""
    if counts != [1] * outcome.sequences:
        return f"{counts} lines in the log"
    lines = [line for (line,) in found]
    ends = [line["outcome"] for line in lines]
    if outcome.ended == "cancelled":
        return "" if ends == ["cancelled"] else f"ended with {ends}, expected cancelled"
    if any(end not in _ENDED_WELL for end in ends):
        return f"ended with {ends}, its client was told of an end"
    if outcome.answer is None or outcome.answer.usage is None:
        return ""
    prompt, cached, generated = outcome.answer.usage
    # Several prompts are several first choices; only their sum is told then.
    told = (generated, None, None) if outcome.sequences > 1 else (generated, prompt, cached)
    logged = (
        sum(line["completion_tokens"] for line in lines),
        None if outcome.sequences > 1 else lines[0]["prompt_tokens"],
        None if outcome.sequences > 1 else lines[0]["cached_tokens"],
    )
    return "" if told == logged else f"usage is {told}, logged {logged}"


def counters_agree(metrics: Mapping[str, float], lines: Sequence[Line]) -> str:
    """Where the counters of requests and tokens are not the sums of the log's lines."""
    ours = [line for line in lines if line["id"].startswith("soak-")]
    logged = Counter((line["endpoint"], line["outcome"]) for line in ours)
    wrong = []
    for endpoint in ENDPOINTS.values():
        for outcome in ("stop", "length", "cancelled", "timeout", "error", "rejected"):
            name = f'mlxcel_requests_total{{endpoint="{endpoint}",outcome="{outcome}"}}'
            if metrics[name] != logged[endpoint, outcome]:
                wrong.append(f"{name} is {metrics[name]:g}, logged {logged[endpoint, outcome]}")
    generated = sum(line["completion_tokens"] for line in ours)
    if metrics["mlxcel_completion_tokens_total"] != generated:
        counted = metrics["mlxcel_completion_tokens_total"]
        wrong.append(f"mlxcel_completion_tokens_total is {counted:g}, logged {generated}")
    return "; ".join(wrong)
