"""A daemon of its own for the soak: its life, its numbers, its log, and orders to it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
from soak_checks import Sample
from soak_refusals import MAX_BODY

from mlxceld.process.pidfile import read_holder

KEY = "soak"
START_SECONDS = 3600
SETTLE_SECONDS = 12


class Daemon:
    """A daemon process with a state folder of its own, and what is asked of it."""

    def __init__(self, model: str, folder: Path, *flags: str) -> None:
        folder.mkdir()
        self.log = folder / "log"
        self._state = folder / "state"
        keys = folder / "keys"
        keys.write_text(f"soak: {KEY}\n")
        keys.chmod(0o600)
        # No setting of the user's may change what is measured.
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("MLXCEL_", "APC_"))}
        settings = folder / "settings.yaml"
        settings.write_text("# defaults\n")
        command = [sys.executable, "-m", "mlxceld", "serve", "--model", model, "--port", "0"]
        command += ["--config", str(settings), "--state-dir", str(self._state)]
        command += ["--api-keys-file", str(keys), "--max-body", str(MAX_BODY)]
        command += ["--log-format", "json", *flags]
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(  # noqa: S603 - our own program
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environ
            )
        self.url = ""
        self.admin: aiohttp.ClientSession

    async def start(self) -> None:
        """Wait until it is ready; raises RuntimeError, with the end of its log, if it is not."""
        limit = time.monotonic() + START_SECONDS
        while time.monotonic() < limit and self.process.poll() is None:
            holder = read_holder(self._state)
            if holder is not None and holder.address:
                self.url = holder.address
                if await self._ready():
                    # Without connections that wait for more: its open files are counted.
                    socket = aiohttp.UnixConnector(
                        str(self._state / "admin.sock"), force_close=True
                    )
                    self.admin = aiohttp.ClientSession(connector=socket)
                    return
            await asyncio.sleep(0.05)
        raise RuntimeError(f"the daemon did not start:\n{self.log.read_text()[-2000:]}")

    async def _ready(self) -> bool:
        try:
            async with aiohttp.request("GET", f"{self.url}/readyz") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    async def order(self, method: str, path: str, body: Any = None, expect: int = 200) -> Any:
        """The admin API's answer; raises RuntimeError for another status."""
        url = f"http://localhost/admin/v1/{path}"
        async with self.admin.request(method, url, json=body) as response:
            text = await response.text()
            if response.status != expect:
                raise RuntimeError(f"{method} {path}: status {response.status}: {text[:300]}")
            return json.loads(text)

    async def metrics(self) -> dict[str, float]:
        """The Prometheus samples by name and labels."""
        headers = {"Authorization": f"Bearer {KEY}"}
        async with aiohttp.request("GET", f"{self.url}/metrics", headers=headers) as response:
            lines = (await response.text()).splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    async def sample(self, requests: int) -> Sample:
        """Its memory now: the proportional share where the system tells it, else resident."""
        metrics = await self.metrics()
        process = int(metrics["process_resident_memory_bytes"])
        if kilobytes := _told(Path(f"/proc/{self.process.pid}/smaps_rollup"), "Pss"):
            process = kilobytes * 1024
        return Sample(requests, process, int(metrics["mlxcel_memory_active_bytes"]))

    async def held(self, expected: dict[str, int] | None = None) -> dict[str, int]:
        """Its open files and, where the system tells, threads, with nothing in flight.

        Connections whose clients have left may take a few seconds to go: where something is
        ``expected`` it is waited for so long.
        """
        await self.idle()
        limit = time.monotonic() + SETTLE_SECONDS
        while True:
            found = {"open files": int((await self.metrics())["process_open_fds"])}
            if threads := _told(Path(f"/proc/{self.process.pid}/status"), "Threads"):
                found["threads"] = threads
            if found == expected or time.monotonic() > limit:
                return found
            await asyncio.sleep(1 if expected else SETTLE_SECONDS)

    async def idle(self) -> dict[str, Any]:
        """Wait until nothing is in flight and all is stored; its status then."""
        limit = time.monotonic() + 60
        while True:
            # A round through the engine: what it has left to do with ended requests is done then.
            await self.order("POST", "cache/flush", {"dry_run": True})
            status: dict[str, Any] = await self.order("GET", "status")
            if (status["idle"] and not status["busy"]) or time.monotonic() > limit:
                return status
            await asyncio.sleep(0.05)

    def lines(self) -> list[dict[str, Any]]:
        """Its log so far, line by line."""
        with self.log.open() as log:
            return [json.loads(line) for line in log if line.startswith("{")]

    async def stop(self) -> int:
        """SIGTERM, and the exit code."""
        await self.admin.close()
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, 120)

    def kill(self) -> None:
        """Leave nothing behind, however it went."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def _told(file: Path, name: str) -> int | None:
    """A number that the system tells of a process; None where there is no such file."""
    if not file.exists():
        return None
    found = re.search(rf"^{name}:\s+(\d+)", file.read_text(), re.MULTILINE)
    return int(found[1]) if found else None
