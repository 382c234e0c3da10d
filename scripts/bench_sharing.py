"""Compare mlxceld with mlx_lm.server where requests share a prefix: fresh processes, in pairs.

For each pair and scenario both servers are started anew, are sent one warming request, and then
one burst of requests with the same system prompt and different questions. Reported are ratios of
mlxceld to mlx_lm.server: wall time, time to first token, memory added (resident size), and the
rate at which streams decode after their first token. Both run the same weights and BLAS.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from bench_serving import PEER, WORDS, free_port, wait_until_ready

WORDS_A_TOKEN = 0.72
"""Of these words, in the demo model's tokenizer, roughly."""


@dataclass(frozen=True)
class Stream:
    """One answer: seconds to its first token, to its last one, and how many there were."""

    first: float
    last: float
    tokens: int
    text: str

    @property
    def rate(self) -> float:
        """Tokens a second after the first."""
        return (self.tokens - 1) / (self.last - self.first)


@dataclass(frozen=True)
class Burst:
    """What a burst of streams took, and what it added to the server's memory, in bytes."""

    streams: list[Stream]
    wall: float
    added: int
    peak: int
    active_added: int | None

    @property
    def ttft(self) -> float:
        """The median of the streams' seconds to their first token."""
        return statistics.median(stream.first for stream in self.streams)

    @property
    def rate(self) -> float:
        """The median of the streams' tokens a second."""
        return statistics.median(stream.rate for stream in self.streams)


class Server:
    """A server process with what is known of its memory."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, *, ours: bool) -> None:
        self.url = url
        self.ours = ours
        self._status = Path(f"/proc/{process.pid}/status")

    def resident(self) -> int:
        """Resident bytes now."""
        lines = self._status.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))

    def mlx_memory(self, which: str) -> int | None:
        """What MLX says is in use (``active``) or was at most (``peak``); only mlxceld tells."""
        if not self.ours:
            return None
        with urllib.request.urlopen(f"{self.url}/metrics") as response:  # noqa: S310
            for line in response.read().decode().splitlines():
                if line.startswith(f"mlxcel_memory_{which}_bytes "):
                    return int(float(line.split()[1]))
        return None


@contextmanager
def serving(options: argparse.Namespace, *, ours: bool, flags: list[str]) -> Iterator[Server]:
    """A fresh server, stopped at the end."""
    port = free_port()
    with tempfile.TemporaryDirectory() as work:
        command = (
            [sys.executable, "-m", "mlxceld", "serve", "--state-dir", f"{work}/state", *flags]
            if ours
            else [sys.executable, "-c", PEER]
        )
        log = Path(work) / "log"
        with log.open("wb") as sink:
            process = subprocess.Popen(  # noqa: S603
                [*command, "--model", options.model, "--port", str(port)], stdout=sink, stderr=sink
            )
        try:
            url = f"http://127.0.0.1:{port}"
            ready = "/readyz" if ours else "/v1/models"
            asyncio.run(wait_until_ready(process, url + ready, log))
            yield Server(process, url, ours=ours)
        finally:
            process.terminate()
            process.wait(60)


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, object]) -> Stream:
    """One streamed answer, timed from before the request is sent."""
    started = time.perf_counter()
    first = last = 0.0
    tokens, text = 0, ""
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
            for choice in event.get("choices", ()):
                if choice["delta"].get("content"):
                    last = time.perf_counter() - started
                    first = first or last
                    text += choice["delta"]["content"]
    return Stream(first, last, tokens, text)


async def converse(url: str, conversations: list[list[str]], tokens: int) -> list[Stream]:
    """Ask all at once; a conversation is a system prompt and a question."""
    timeout = aiohttp.ClientTimeout(total=1800)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        return await asyncio.gather(
            *(
                ask(session, url, request([("system", system), ("user", question)], tokens))
                for system, question in conversations
            )
        )


def request(messages: list[tuple[str, str]], tokens: int) -> dict[str, object]:
    """A greedy, streamed chat request."""
    return {
        "model": "default_model",
        "messages": [{"role": role, "content": content} for role, content in messages],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def burst(server: Server, conversations: list[list[str]], tokens: int) -> Burst:
    """One burst, with the server's memory watched meanwhile."""
    before, active = server.resident(), server.mlx_memory("active")
    seen = [before]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            seen.append(server.resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    try:
        streams = asyncio.run(converse(server.url, conversations, tokens))
    finally:
        wall = time.perf_counter() - started
        done.set()
        watcher.join()
    highest = server.mlx_memory("peak")
    added = None if active is None or highest is None else highest - active
    return Burst(streams, wall, max(seen) - before, max(seen), added)


def scenario(options: argparse.Namespace, seed: int, *, warm: bool) -> dict[str, Burst]:
    """Fresh servers, one warming request each, and the same burst."""
    rng = random.Random(seed)  # noqa: S311 - fixed, not secret
    words = int(options.prefix_tokens * WORDS_A_TOKEN)
    system = "You are a careful assistant. " + " ".join(rng.choice(WORDS) for _ in range(words))
    chats = [
        [system, f"{i}: how do {' and '.join(rng.sample(WORDS, 3))} go together?"]
        for i in range(options.streams)
    ]
    found = {}
    runs = {"ours": (True, []), "peer": (False, []), "off": (True, ["--no-prompt-cache"])}
    names = ["ours", "peer"] if seed % 2 else ["peer", "ours"]
    for name in [*names, *(["off"] if options.with_cache_off else [])]:
        ours, flags = runs[name]
        with serving(options, ours=ours, flags=list(flags)) as server:
            first = [system, "Hello."] if warm else ["Be brief.", "Hello."]
            asyncio.run(converse(server.url, [first], 4))
            found[name] = burst(server, chats, options.tokens)
    return found


def told(name: str, ratios: list[float], better: str) -> str:
    """One line: a ratio's median and spread."""
    middle = statistics.median(ratios)
    return f"  {name}: {middle:.3f} ({min(ratios):.3f} to {max(ratios):.3f}), {better} is better"


def main() -> None:
    """Run the pairs and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="an MLX model folder (float32 on a CPU)")
    parser.add_argument("--pairs", type=int, default=5, help="interleaved pairs (default 5)")
    parser.add_argument("--prefix-tokens", type=int, default=700, help="shared (default 700)")
    parser.add_argument("--streams", type=int, default=8, help="requests in a burst (default 8)")
    parser.add_argument("--tokens", type=int, default=16, help="tokens a stream (default 16)")
    parser.add_argument("--kind", choices=("cold", "warm"), nargs="+", default=["cold", "warm"])
    parser.add_argument("--with-cache-off", action="store_true", help="mlxceld without its cache")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for kind in options.kind:
        pairs = [scenario(options, i + 1, warm=kind == "warm") for i in range(options.pairs)]
        both = [(pair["ours"], pair["peer"]) for pair in pairs]
        same = sum(
            a.text == b.text
            for mine, peer in both
            for a, b in zip(mine.streams, peer.streams, strict=True)
        )
        print(f"{kind} burst, {options.prefix_tokens} shared tokens, {options.pairs} pairs:")
        print(told("wall", [mine.wall / peer.wall for mine, peer in both], "less"))
        print(told("time to first token", [m.ttft / p.ttft for m, p in both], "less"))
        print(told("memory added, resident", [m.added / p.added for m, p in both], "less"))
        print(told("decode rate of a stream", [m.rate / p.rate for m, p in both], "more"))
        print(f"  answers alike: {same} of {options.pairs * options.streams}")
        active = [mine.active_added or 0 for mine, _ in both]
        print(f"  MLX's peak over its active memory before, mlxceld: {sorted(active)} bytes")
        if options.with_cache_off:
            peaks = [pair["ours"].peak / pair["off"].peak for pair in pairs]
            print(told("peak, against mlxceld without its cache", peaks, "less"), flush=True)


if __name__ == "__main__":
    main()
