"""Compare mlxceld with mlx_lm.server on one model: total tokens a second, in interleaved pairs.

Both servers run the same weights through the same BLAS. Each round sends the same seeded prompts
to one server and then, in turn, to the other; only ratios are reported, since absolute figures
belong to a machine and a moment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

WORDS = [
    *("river", "mountain", "lantern", "engine", "garden", "harbour", "winter", "copper"),
    *("music", "letter", "bridge", "forest", "market", "signal", "window", "thunder"),
    *("silver", "morning", "island", "shadow", "compass", "orchard", "station", "velvet"),
]

PEER = (
    "import ctypes, sys\n"
    "try: ctypes.CDLL('libopenblas.so.0', mode=ctypes.RTLD_GLOBAL)\n"
    "except OSError: pass\n"
    "from mlx_lm.server import main\n"
    "main()\n"
)


@dataclass(frozen=True)
class Round:
    """One round's figures: tokens generated over all streams, and wall seconds."""

    tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


def prompts(seed: int, streams: int) -> list[str]:
    """Seeded prompts, each of its own topic, that a chat model answers at length."""
    rng = random.Random(seed)  # noqa: S311 - fixed, not secret
    return [
        "Write a very long and detailed story, with many paragraphs, about the following: "
        + ", ".join(rng.sample(WORDS, 6))
        + "."
        for _ in range(streams)
    ]


async def run_round(url: str, texts: list[str], tokens: int) -> Round:
    """Send all prompts at once; count what the servers say they generated."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=900)) as session:

        async def one(text: str) -> int:
            body = {
                "model": "default_model",
                "messages": [{"role": "user", "content": text}],
                "max_tokens": tokens,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            generated = 0
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                response.raise_for_status()
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        usage = json.loads(line[6:]).get("usage")
                        generated = usage["completion_tokens"] if usage else generated
            return generated

        started = time.perf_counter()
        counts = await asyncio.gather(*(one(text) for text in texts))
        return Round(sum(counts), time.perf_counter() - started)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(command: list[str], port: int, ready: str, log: Path) -> Iterator[str]:
    """Run a server until it is ready, and stop it at the end."""
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink)  # noqa: S603
        try:
            asyncio.run(wait_until_ready(process, url + ready, log))
            yield url
        finally:
            process.terminate()
            process.wait(60)


async def wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Until a server answers; raises SystemExit with the end of its log if it does not."""
    async with aiohttp.ClientSession() as session:
        for _ in range(600):
            if process.poll() is not None:
                raise SystemExit(f"a server ended early:\n{_tail(log)}")
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)
    raise SystemExit("a server did not become ready in five minutes")


def _tail(log: Path) -> str:
    return log.read_text()[-2000:]


def main() -> None:
    """Run the comparison and print one line of ratios a stream count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="an MLX model folder (float32 on a CPU)")
    parser.add_argument("--pairs", type=int, default=5, help="interleaved pairs (default 5)")
    parser.add_argument("--streams", type=int, nargs="+", default=[8, 1])
    parser.add_argument("--tokens", type=int, default=96, help="tokens a stream (default 96)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    mine, peers = free_port(), free_port()
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        ours = stack.enter_context(
            serving(
                [
                    *(sys.executable, "-m", "mlxceld", "serve", "--model", options.model),
                    *("--port", str(mine), "--state-dir", str(work / "state")),
                ],
                mine,
                "/readyz",
                work / "mlxceld.log",
            )
        )
        peer = stack.enter_context(
            serving(
                [sys.executable, "-c", PEER, "--model", options.model, "--port", str(peers)],
                peers,
                "/v1/models",
                work / "peer.log",
            )
        )
        for url in (ours, peer):
            asyncio.run(run_round(url, prompts(options.seed, 1), 8))
        for streams in options.streams:
            ratios, counts = [], []
            for pair in range(options.pairs):
                texts = prompts(options.seed + 1000 * streams + pair + 1, streams)
                order = (ours, peer) if pair % 2 == 0 else (peer, ours)
                found = {url: asyncio.run(run_round(url, texts, options.tokens)) for url in order}
                ratios.append(found[ours].rate / found[peer].rate)
                counts.append((found[ours].tokens, found[peer].tokens))
            print(
                f"{streams} streams of {options.tokens} tokens:"
                f" tokens a second, mlxceld / mlx_lm.server = {statistics.median(ratios):.3f}"
                f" (lowest {min(ratios):.3f}, highest {max(ratios):.3f}, {options.pairs} pairs;"
                f" tokens {counts})",
                flush=True,
            )


if __name__ == "__main__":
    main()
