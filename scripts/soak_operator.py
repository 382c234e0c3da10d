"""Orders through the admin socket while the soak's clients ask."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from soak_checks import stats_add_up
from soak_daemon import Daemon
from soak_prompts import SYSTEMS, words


class Operator:
    """Gives orders through the admin socket, and looks whether the statistics add up after each."""

    def __init__(self, daemon: Daemon, seed: int, budget: dict[str, int]) -> None:
        self._daemon = daemon
        self._rng = random.Random(f"{seed} operator")  # noqa: S311 - fixed, not secret
        self._budget = budget
        self.given: Counter[str] = Counter()
        self.problems: list[str] = []

        self._orders: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "flush": (2, self._flush),
            "resize": (2, self._resize),
            "trace": (1, self._trace),
            "verify": (1, self._verify),
            "warm": (1, self._warm),
            "look": (1, self._look),
            "refused": (1, self._refused),
        }

    async def act(self) -> None:
        """Give one order."""
        weights = [weight for weight, _ in self._orders.values()]
        await self._give(self._rng.choices(list(self._orders), weights)[0])

    async def give_each(self) -> None:
        """Give every order once."""
        for name in self._orders:
            await self._give(name)

    async def _give(self, name: str) -> None:
        order = self._orders[name][1]
        self.given[name] += 1
        try:
            await order()
            wrong = stats_add_up(await self._daemon.order("GET", "cache/stats"))
        except (RuntimeError, aiohttp.ClientError, OSError) as error:
            wrong = str(error)
        if wrong:
            self.problems.append(f"{name}: {wrong}")

    async def restore(self) -> None:
        """The whole budget again, and the trace off."""
        await self._daemon.order("PATCH", "cache/budget", self._budget)
        await self._daemon.order("PUT", "trace", {"enabled": False})

    async def _flush(self) -> None:
        body: dict[str, Any] = {"store": self._rng.choice(("all", "kv", "snapshots"))}
        if self._rng.random() < 0.6:
            body["session"] = self._rng.choice(("one", f"talk-{self._rng.randrange(8)}"))
        await self._daemon.order("POST", "cache/flush", body)

    async def _resize(self) -> None:
        shares = self._rng.choice((0.0, 0.1, 0.5, 1.0, 1.0))
        smaller = {name: int(value * shares) for name, value in self._budget.items()}
        await self._daemon.order("PATCH", "cache/budget", smaller)
        if shares < 0.5:
            await asyncio.sleep(0.5)
            await self._daemon.order("PATCH", "cache/budget", self._budget)

    async def _trace(self) -> None:
        await self._daemon.order("PUT", "trace", {"enabled": self._rng.random() < 0.5})

    async def _verify(self) -> None:
        report = await self._daemon.order("POST", "cache/verify", {})
        if not report["passed"]:
            raise RuntimeError(report["reason"])

    async def _warm(self) -> None:
        prompt = f"{self._rng.choice(SYSTEMS)} {words(self._rng, 20)}"
        body = {"prompt": prompt, "session": "one", "pin": True}
        url = "http://localhost/admin/v1/cache/warm"
        async with self._daemon.admin.post(url, json=body) as response:
            report = await response.json()
            # While the store is small, or off, there is no room for a pin.
            if response.status not in (200, 409):
                raise RuntimeError(f"cache/warm: status {response.status}: {report}")
        if response.status == 200:
            # Dropped by a flush or a resize meanwhile, it is not there to be unpinned.
            url = f"http://localhost/admin/v1/cache/pins/{report['digest']}"
            async with self._daemon.admin.delete(url) as response:
                if response.status not in (200, 404):
                    raise RuntimeError(f"cache/pins: status {response.status}")

    async def _look(self) -> None:
        await self._daemon.order("GET", "cache/entries?limit=20")
        await self._daemon.order("GET", "requests")
        await self._daemon.order("POST", "cache/explain", {"prompt": words(self._rng, 30)})

    async def _refused(self) -> None:
        await self._daemon.order("POST", "cache/flush", {"store": "none"}, expect=400)
        await self._daemon.order("DELETE", "requests/of-nobody", expect=404)
        await self._daemon.order("PATCH", "cache/budget", {"capacity_bytes": -1}, expect=400)
