"""Keeps the admin socket where callers look for it while the daemon runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from mlxceld.admin.socket import AdminSocket, AdminSocketError

log = logging.getLogger(__name__)

CHECK_SECONDS = 30.0
"""How often it is looked whether the socket's file is still there."""


class AdminListener:
    """Serves an application on the admin socket, and binds it anew where its file has gone.

    Folders under /tmp are swept, and people delete what they take for leftovers. Connections that
    are open stay open.
    """

    def __init__(
        self,
        runner: web.BaseRunner,
        admin: AdminSocket,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._runner = runner
        self._admin = admin
        self._sleep = sleep
        self._site: web.SockSite | None = None
        self._complaint = ""

    async def start(self) -> None:
        """Serve on the socket, which is bound."""
        site = web.SockSite(self._runner, self._admin.listener)
        await site.start()
        self._site = site

    async def keep(self) -> None:
        """Look at the socket's file from time to time; does not return."""
        while True:
            await self._sleep(CHECK_SECONDS)
            await self.check()

    async def check(self) -> bool:
        """Bind the socket anew if its file has gone; whether that was done."""
        if not self._admin.is_gone:
            self._complaint = ""
            return False
        before = self._site
        try:
            await asyncio.to_thread(self._admin.bind)
        except AdminSocketError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.warning("the admin socket is gone and cannot be bound anew: %s", error)
            return False
        await self.start()
        if before is not None:
            await before.stop()
        log.warning("the admin socket %s was gone; it is bound anew", self._admin.path)
        return True
