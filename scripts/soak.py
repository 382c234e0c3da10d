"""Run a daemon under a mixed load for long, and check that nothing is lost, wrong or growing.

    python scripts/soak.py --tiny llama --requests 20000
    python scripts/soak.py --model MODEL --minutes 60

Starts a daemon of its own, on a tiny model with random weights or on ``MODEL``, and plays seeded
requests of all four generating APIs at it: whole and streamed, growing conversations, prompts that
come again, several choices, structured output; clients that leave at any moment, and requests that
have to be refused. Meanwhile flushes, resizes, self-checks and the like come in through the admin
socket. Ends after ``--requests`` or ``--minutes``, whichever comes first. Checked is that

- each request ended as it had to, and the daemon's log and counters tell the same of it;
- prompts with a known answer, computed cold beforehand, have that answer every time;
- the cache's statistics add up, the self-check passes, and a recount finds no fault;
- memory does not grow, requests do not become slower, no file and no thread is left over;
- the daemon ends with 0 on SIGTERM.

Prints a line of progress now and then, and a table at the end; the exit code is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
from soak_checks import (
    Check,
    Sample,
    counters_agree,
    log_agrees,
    memory_is_flat,
    ttft_is_level,
)
from soak_daemon import KEY, Daemon
from soak_dialects import read_whole
from soak_load import Load, Outcome
from soak_operator import Operator
from soak_prompts import Reference, candidates

KV_BYTES = 7 << 20
CAPACITY = 6 << 20
"""Of a tiny model: small enough that entries have to go, and at times running requests, too."""

REFERENCES = 12
CLEAR_MARGIN = 0.01
"""How much likelier the best token of a reference is than the next, as a log-probability: what
others in the batch move is far below, so that the answer cannot hang on it."""

WARMUP_REQUESTS = 200

_TOLD = (
    *("hits", "misses", "inserts", "evictions_lru", "evictions_flush", "evictions_resize"),
    *("snapshot_hits", "snapshot_misses", "snapshot_inserts", "snapshot_supersedes"),
    *("prefetch_run", "prompt_tokens_computed", "prompt_tokens_reused"),
)
"""What of the cache's statistics shows that all of it has been used."""

RECOUNT_SECONDS = 32
"""The daemon recounts what it holds 30 s after its last step."""


async def compute_references(daemon: Daemon, seed: int) -> list[Reference]:
    """Prompts with their answers, asked one by one of a daemon without a prompt cache.

    Only those whose every token is clearly the likeliest.
    """
    found: list[Reference] = []
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session:
        for reference in candidates(seed):
            chat = "messages" in reference.body
            asked = {"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2}
            body = {**reference.body, **asked}
            async with session.post(daemon.url + reference.path, json=body) as response:
                response.raise_for_status()
                answer = await response.json()
            logprobs = answer["choices"][0]["logprobs"]
            tops = (
                [[t["logprob"] for t in item["top_logprobs"]] for item in logprobs["content"]]
                if chat
                else [list(top.values()) for top in logprobs["top_logprobs"]]
            )
            pairs = [sorted(values, reverse=True) for values in tops]
            if all(len(p) < 2 or p[0] - p[1] > CLEAR_MARGIN for p in pairs):
                reference.text = read_whole(reference.path, answer).text
                found.append(reference)
            if len(found) == REFERENCES:
                break
    if not found:
        raise RuntimeError("no prompt has a clear answer on this model")
    return found


class Soak:
    """One run: the load, the operator, what was sampled, and what came of it."""

    def __init__(self, options: argparse.Namespace, daemon: Daemon, load: Load) -> None:
        self._options = options
        self._daemon = daemon
        self._load = load
        self.outcomes: list[Outcome] = []
        self.samples: list[Sample] = []
        self.seconds = 0.0

    async def play(self, operator: Operator | None, requests: int, seconds: float) -> None:
        """So many requests, or as many as fit the time, eight at once or as told."""
        numbers = itertools.count(len(self.outcomes))
        first, began = len(self.outcomes), time.monotonic()

        async def work(worker: int) -> None:
            while time.monotonic() - began < seconds:
                number = next(numbers)
                if number >= first + requests:
                    return
                self.outcomes.append(await self._load.run(number, worker))

        async def watch() -> None:
            told = time.monotonic()
            while True:
                await asyncio.sleep(self._options.sample_seconds)
                self.samples.append(await self._daemon.sample(len(self.outcomes)))
                if time.monotonic() - told >= self._options.progress_seconds:
                    told = time.monotonic()
                    self._progress(len(self.outcomes) - first, told - began)

        async def operate() -> None:
            every, done = self._options.order_every, len(self.outcomes)
            while operator is not None:
                await asyncio.sleep(0.05)
                if len(self.outcomes) >= done + every:
                    done = len(self.outcomes)
                    await operator.act()

        others = [asyncio.create_task(watch()), asyncio.create_task(operate())]
        try:
            await self._load.open()
            await asyncio.gather(*(work(i) for i in range(self._options.concurrency)))
        finally:
            self.seconds += time.monotonic() - began
            # Orders are waited for, so that no request of the operator's is cut off.
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._load.close()

    def _progress(self, done: int, seconds: float) -> None:
        wrong = sum(bool(outcome.problem) for outcome in self.outcomes)
        memory = self.samples[-1].process / 2**20
        print(
            f"{done:,} requests, {done / seconds:.1f} a second, {wrong} wrong, {memory:.0f} MiB",
            file=sys.stderr,
            flush=True,
        )


async def run(options: argparse.Namespace, model: str, work: Path) -> dict[str, Any]:
    """The whole soak; returns its result as JSON values."""
    # Little, so that what is kept of responses is soon as much as it will be.
    flags = ["--responses-capacity-bytes", str(1 << 17)]
    if not options.model:
        flags += ["--kv-cache-budget", str(KV_BYTES)]
        flags += ["--prompt-cache-capacity-bytes", str(CAPACITY)]
        flags += ["--prompt-cache-snapshot-capacity-bytes", str(CAPACITY)]
    flags += options.flag
    cold = Daemon(model, work / "cold", "--no-prompt-cache", "--max-batch-size", "1")
    try:
        await cold.start()
        references = await compute_references(cold, options.seed)
        await cold.stop()
    finally:
        cold.kill()
    daemon = Daemon(model, work / "soak", *flags)
    try:
        await daemon.start()
        return await _soak(options, daemon, references)
    finally:
        daemon.kill()
        if options.keep_log:
            options.keep_log.write_bytes(daemon.log.read_bytes())


async def _soak(
    options: argparse.Namespace, daemon: Daemon, references: list[Reference]
) -> dict[str, Any]:
    status = await daemon.order("GET", "status")

    async def cancel(request_id: str) -> bool:
        url = f"http://localhost/admin/v1/requests/{request_id}"
        async with daemon.admin.delete(url) as response:
            return response.status == 200

    load = Load(
        daemon.url,
        KEY,
        seed=options.seed,
        references=references,
        context_tokens=status["model"]["context_length"],
        cancel=cancel,
    )
    stats = await daemon.order("GET", "cache/stats")
    names = ("capacity_bytes", "max_entries", "snapshot_capacity_bytes", "snapshot_max_entries")
    operator = Operator(daemon, options.seed, {name: stats[name] for name in names})
    soak = Soak(options, daemon, load)
    warmup = min(WARMUP_REQUESTS, options.requests)
    await soak.play(None, warmup, options.minutes * 60)
    await operator.give_each()
    await operator.restore()
    held = await daemon.held()
    soak.samples.clear()
    soak.seconds = 0.0
    await soak.play(operator, options.requests - warmup, options.minutes * 60)
    await operator.restore()

    stats = await daemon.order("GET", "cache/stats")
    preemptions = (await daemon.order("GET", "status"))["preemptions"]
    checks = await _checks(options, daemon, soak, operator, held)
    kinds = Counter(outcome.kind for outcome in soak.outcomes)
    return {
        "model": status["model"]["id"],
        "seed": options.seed,
        "requests": len(soak.outcomes),
        "requests_a_second": (len(soak.outcomes) - warmup) / soak.seconds,
        "kinds": dict(sorted(kinds.items())),
        "orders": dict(sorted(operator.given.items())),
        "daemon": {"preemptions": preemptions, **{name: stats[name] for name in _TOLD}},
        "problems": [f"{o.request_id} ({o.kind}): {o.problem}" for o in soak.outcomes if o.problem],
        "samples": [dataclasses.astuple(sample) for sample in soak.samples],
        "checks": [dataclasses.asdict(check) for check in checks],
        "passed": all(check.passed for check in checks),
    }


async def _checks(
    options: argparse.Namespace,
    daemon: Daemon,
    soak: Soak,
    operator: Operator,
    held: dict[str, int],
) -> list[Check]:
    outcomes = soak.outcomes
    wrong = [outcome for outcome in outcomes if outcome.problem]
    references = [outcome for outcome in outcomes if outcome.kind == "reference"]
    checks = [
        Check("every request ended as it had to", not wrong, f"{len(wrong)} of {len(outcomes)}"),
        Check(
            "known answers",
            not any(outcome.problem for outcome in references),
            f"{len(references)} times the same as cold",
        ),
        Check("orders and sums of the statistics", not operator.problems, _few(operator.problems)),
    ]
    status = await daemon.idle()
    metrics = await daemon.metrics()
    in_flight = status["running"] + status["waiting"]
    checks.append(Check("none in flight", in_flight == 0, f"{in_flight}"))
    lines = [line for line in daemon.lines() if "completion_tokens" in line]
    disagreements = log_agrees(outcomes, lines)
    checks.append(Check("log", not disagreements, _few(disagreements) or f"{len(lines)} lines"))
    differs = counters_agree(metrics, lines)
    checks.append(Check("counters", not differs, differs or "the sums of the log"))
    checks += memory_is_flat(soak.samples, options.flat)
    checks.append(ttft_is_level(outcomes[WARMUP_REQUESTS:]))
    after = await daemon.held(held)
    checks.append(Check("files and threads", after == held, f"{after}, {held} at the start"))
    report = await daemon.order("POST", "cache/verify", {})
    checks.append(Check("self-check", report["passed"], report["reason"] or "passed"))
    if not options.no_recount:
        await asyncio.sleep(RECOUNT_SECONDS)
    status = await daemon.order("GET", "status")
    checks.append(Check("recount", not status["faults"], status["fault"] or "no fault"))
    bad_lines = [line for line in daemon.lines() if line.get("level") in ("error", "critical")]
    texts = [line["message"] for line in bad_lines]
    checks.append(Check("no error in the log", not texts, _few(texts)))
    code = await daemon.stop()
    checks.append(Check("exit", code == 0, f"code {code}"))
    return checks


def _few(texts: list[str]) -> str:
    """The first of them, and how many there are."""
    more = f" (and {len(texts) - 3} more)" if len(texts) > 3 else ""
    return " | ".join(texts[:3]) + more


def tiny_model(family: str, folder: Path) -> str:
    """A folder with a tiny model of that family."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from tiny_models import write_tiny_model

    return str(write_tiny_model(folder / family, family))


def main() -> int:
    """Run the soak and print what came of it; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", help="what mlxceld serve --model takes")
    model.add_argument("--tiny", default="llama", help="family of a tiny model (default llama)")
    parser.add_argument("--requests", type=int, default=20_000, help="at most (default 20,000)")
    parser.add_argument("--minutes", type=float, default=60.0, help="at most (default 60)")
    parser.add_argument("--concurrency", type=int, default=8, help="at once (default 8)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flag", action="append", default=[], help="of mlxceld serve, repeatable")
    parser.add_argument("--order-every", type=int, default=50, help="requests (default 50)")
    parser.add_argument("--flat", type=float, default=0.03, help="share memory may rise by (0.03)")
    parser.add_argument("--sample-seconds", type=float, default=1.0)
    parser.add_argument("--progress-seconds", type=float, default=10.0)
    parser.add_argument("--no-recount", action="store_true", help="do not wait 30 s for a recount")
    parser.add_argument("--out", type=Path, help="write the result here as JSON")
    parser.add_argument("--keep-log", type=Path, help="copy the daemon's log here")
    options = parser.parse_args()
    # However it is ended, its daemon ends too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="soak") as work:
        chosen = options.model or tiny_model(options.tiny, Path(work))
        result = asyncio.run(run(options, chosen, Path(work)))
    for check in result["checks"]:
        print(f"{'ok  ' if check['passed'] else 'FAIL'}  {check['name']}: {check['detail']}")
    for problem in result["problems"][:20]:
        print(f"      {problem}")
    print(f"{result['requests']:,} requests, {result['requests_a_second']:.1f} a second")
    print(json.dumps({name: result[name] for name in ("kinds", "orders", "daemon", "passed")}))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
