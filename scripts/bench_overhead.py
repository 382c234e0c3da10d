"""What serving costs: tokens a second over HTTP against the same loop without a server.

On a tiny model there is little to compute, so that what is left is what the daemon adds. Each
pair sends the same new prompts once to a daemon, as streamed chat completions, and once through
mlx-lm in a process of its own: several streams through ``BatchGenerator``, all inserted at once,
and one stream through ``stream_generate``. Both run the same weights through the same BLAS,
greedy, to the same number of tokens. Who goes first changes from pair to pair; only ratios are
reported, since absolute figures belong to a machine and a moment.

A third process runs the model alone on the same shapes: call, argmax, evaluation. What a step of
the daemon takes longer than that, as a share of it, is what is not the model.

The client keeps the bytes as they come and reads them when the clock has stopped. What it takes
of a core is reported, since it shares the machine with the daemon.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent

_ENOUGH_FOR_QUARTERS = 12

_PIECE = b'"delta": {"content": '

WORDS = [
    *("river", "mountain", "lantern", "engine", "garden", "harbour", "winter", "copper"),
    *("music", "letter", "bridge", "forest", "market", "signal", "window", "thunder"),
]


@dataclass(frozen=True)
class Answers:
    """What one side gave for one set of prompts.

    ``prompt_tokens`` and ``tokens`` count over all streams, ``texts`` are in the prompts' order;
    ``seconds`` are from the first request to the last byte, of the bare model those of a step.
    Of a server alone: ``step`` is the mean of seconds from a stream's first piece of text to its
    last, by token; ``events`` counts those pieces, ``writes`` the blocks that they came in;
    ``client_cpu`` and ``server_cpu`` are CPU seconds, of the bare model those of a step.
    """

    prompt_tokens: int
    tokens: int
    seconds: float
    texts: list[str]
    step: float = 0.0
    events: int = 0
    writes: int = 0
    client_cpu: float = 0.0
    server_cpu: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


def prompts(seed: int, streams: int) -> list[str]:
    """Seeded prompts that begin differently and are of different lengths."""
    rng = random.Random(seed)  # noqa: S311 - fixed, not secret
    return [" ".join(rng.choices(WORDS, k=4 + i % 3)) for i in range(streams)]


# The sides without a server, each in a process of its own.


class Worker:
    """Asks ``bench_inline.py`` in a process of its own; see there for ``kind``."""

    def __init__(self, kind: str, model: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, str(ROOT / "scripts" / "bench_inline.py"), kind, model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def ask(self, texts: list[str], tokens: int) -> Answers:
        """Let it answer some prompts."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": texts, "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        return Answers(**self._read())

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise SystemExit("a process that runs mlx-lm ended early")


# The side with a server.


@dataclass
class Received:
    """The blocks of one response, and when each came."""

    blocks: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def text_seconds(self) -> float:
        """From the first piece of text to the last."""
        raw = b"".join(self.blocks)
        ends = list(accumulate(map(len, self.blocks)))
        first, last = (
            self.times[bisect_right(ends, at)] for at in (raw.find(_PIECE), raw.rfind(_PIECE))
        )
        return last - first


class Served:
    """A daemon at ``url`` with process id ``pid``, asked over sockets that are read as they are."""

    def __init__(self, url: str, pid: int) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 0)
        self._pid = pid

    def ask(self, texts: list[str], tokens: int) -> Answers:
        """Send all prompts at once and read until every stream has ended."""
        requests = [self._request(text, tokens) for text in texts]
        received = [Received() for _ in texts]
        client, server = time.process_time(), cpu_seconds(self._pid)
        started = time.perf_counter()
        with selectors.DefaultSelector() as selector:
            for index, request in enumerate(requests):
                connection = socket.create_connection(self._address)
                connection.sendall(request)
                selector.register(connection, selectors.EVENT_READ, received[index])
            while selector.get_map():
                for key, _ in selector.select():
                    connection = cast("socket.socket", key.fileobj)
                    block = connection.recv(1 << 16)
                    if block:
                        key.data.blocks.append(block)
                        key.data.times.append(time.perf_counter())
                    else:
                        selector.unregister(connection)
                        connection.close()
        seconds = time.perf_counter() - started
        client, server = time.process_time() - client, cpu_seconds(self._pid) - server
        streams = [_stream(b"".join(one.blocks)) for one in received]
        return Answers(
            prompt_tokens=sum(usage["prompt_tokens"] for usage, _, _ in streams),
            tokens=sum(usage["completion_tokens"] for usage, _, _ in streams),
            seconds=seconds,
            texts=["".join(pieces) for _, pieces, _ in streams],
            step=statistics.fmean(one.text_seconds() for one in received) / (tokens - 1),
            events=sum(len(pieces) for _, pieces, _ in streams),
            writes=sum(writes for _, _, writes in streams),
            client_cpu=client,
            server_cpu=server,
        )

    def _request(self, text: str, tokens: int) -> bytes:
        body = json.dumps(
            {
                "messages": [{"role": "user", "content": text}],
                "max_tokens": tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\n"
            f"Host: {self._address[0]}:{self._address[1]}\r\n"
            "Connection: close\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return (head + body).encode()


def _stream(raw: bytes) -> tuple[dict[str, int], list[str], int]:
    """The usage, the pieces of text and the number of blocks of a chunked response."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"the daemon answered: {raw.decode(errors='replace')[:2000]}")
    body, writes = [], 0
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size or b"0", 16)
        if not length:
            break
        body.append(rest[:length])
        rest = rest[length + 2 :]
        writes += 1
    usage: dict[str, int] = {}
    pieces = []
    for event in b"".join(body).split(b"\n\n"):
        if event.startswith(b"data: {"):
            chunk = json.loads(event[6:])
            usage = chunk.get("usage") or usage
            pieces += [c["delta"]["content"] for c in chunk["choices"] if c["delta"].get("content")]
    if not usage:
        raise SystemExit(f"a stream ended without a usage: {raw.decode(errors='replace')[-2000:]}")
    return usage, pieces, writes


def cpu_seconds(pid: int) -> float:
    """CPU seconds that a process has used; 0 where the system has no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(model: str, work: Path, flags: list[str]) -> Iterator[Served]:
    """Run a daemon until it is ready, and stop it at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url, log = f"http://127.0.0.1:{port}", work / "mlxceld.log"
    command = [
        *(sys.executable, "-m", "mlxceld", "serve", "--model", model),
        *("--port", str(port), "--state-dir", str(work / "state"), *flags),
    ]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink)  # noqa: S603
        try:
            for _ in range(600):
                if process.poll() is not None:
                    raise SystemExit(f"the daemon ended early:\n{log.read_text()[-2000:]}")
                try:
                    with urllib.request.urlopen(url + "/readyz"):  # noqa: S310 - loopback
                        break
                except urllib.error.URLError:
                    time.sleep(0.5)
            else:
                raise SystemExit("the daemon did not become ready in five minutes")
            yield Served(url, process.pid)
        finally:
            process.terminate()
            process.wait(60)


def tiny_model(folder: Path, family: str) -> Path:
    """A tiny model of the tests, with random weights."""
    sys.path.insert(0, str(ROOT / "tests"))
    from mlxceld.models import blas

    blas.interpose()
    from tiny_models import write_tiny_model

    model: Path = write_tiny_model(folder / family, family)
    return model


def compare(
    served: Served, loop: Worker, bare: Worker, streams: int, options: argparse.Namespace
) -> None:
    """Run the pairs for one number of streams and print what was found."""
    found: dict[Served | Worker, list[Answers]] = {served: [], loop: [], bare: []}
    for pair in range(options.pairs):
        texts = prompts(options.seed + 1000 * streams + pair + 1, streams)
        sides: list[Served | Worker] = [served, loop, bare]
        for side in sides if pair % 2 == 0 else reversed(sides):
            found[side].append(side.ask(texts, options.tokens))
    mine, theirs, model = found.values()
    for three in zip(mine, theirs, model, strict=True):
        counts = {(one.prompt_tokens, one.tokens) for one in three}
        if len(counts) > 1 or three[0].tokens != streams * options.tokens:
            raise SystemExit(f"the sides did not do the same: {counts}")
    same = sum(
        one == other
        for a, b in zip(mine, theirs, strict=True)
        for one, other in zip(a.texts, b.texts, strict=True)
    )
    seconds, tokens = sum(one.seconds for one in mine), sum(one.tokens for one in mine)
    peer = "BatchGenerator" if streams > 1 else "stream_generate"
    ratios = [a.rate / b.rate for a, b in zip(mine, theirs, strict=True)]
    shares = [1 - b.seconds / a.step for a, b in zip(mine, model, strict=True)]
    cpu_shares = [
        1 - b.server_cpu * options.tokens / a.server_cpu if a.server_cpu else 0.0
        for a, b in zip(mine, model, strict=True)
    ]
    print(
        f"{streams} x {options.tokens} tokens: over HTTP / {peer} = {_spread(ratios, '.3f')},"
        f" of a step {_spread(shares, '.0%')} is not the model,"
        f" of the CPU time {_spread(cpu_shares, '.0%')}; {len(ratios)} pairs;"
        f" client {sum(one.client_cpu for one in mine) / seconds:.0%} of a core,"
        f" daemon {sum(one.server_cpu for one in mine) / seconds:.0%};"
        f" a token has {sum(one.events for one in mine) / tokens:.2f} events"
        f" in {sum(one.writes for one in mine) / tokens:.2f} writes;"
        f" {same} of {streams * len(ratios)} answers are the same",
        flush=True,
    )


def _spread(values: list[float], form: str) -> str:
    """The median, the range of the middle half where there are enough values, and that of all."""
    middle = ""
    if len(values) >= _ENOUGH_FOR_QUARTERS:
        quarter, _, three = statistics.quantiles(values, n=4)
        middle = f"half from {quarter:{form}} to {three:{form}}, all "
    lowest, highest = min(values), max(values)
    return f"{statistics.median(values):{form}} ({middle}from {lowest:{form}} to {highest:{form}})"


def main() -> None:
    """Run the comparison and print one line a number of streams."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="an MLX model folder (default: a tiny one is made)")
    parser.add_argument("--family", default="llama", help="of the tiny model (default llama)")
    parser.add_argument("--pairs", type=int, default=7, help="interleaved pairs (default 7)")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=256, help="tokens a stream (default 256)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve-flag", action="append", default=[], help="passed to the daemon")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = options.model or str(tiny_model(work, options.family))
        served = stack.enter_context(serving(model, work, options.serve_flag))
        loop, bare = (Worker(kind, model) for kind in ("loop", "bare"))
        stack.callback(loop.close)
        stack.callback(bare.close)
        sides: list[Served | Worker] = [served, loop, bare]
        for side in sides:
            for streams in sorted({1, *options.streams}):
                side.ask(prompts(options.seed, streams), 16)
        for streams in options.streams:
            compare(served, loop, bare, streams, options)


if __name__ == "__main__":
    main()
