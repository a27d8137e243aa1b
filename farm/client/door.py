"""The daemon as a client sees it: questions, streams that go on where they broke off, and restarts waited out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from farm.client.link import Links
from farm.control.address import Where
from farm.control.messages import Reply
from farm.core.errors import DaemonUnreachableError

RESTART_S = 60.0  # a start with 100,000 jobs of history takes seconds; an upgrade of the package half a minute
LOOK_S = 0.1  # how often an absent daemon is looked for; a unix socket costs nothing to try

logger = logging.getLogger("farm.client")

OnNotice = Callable[[str], None]
OnTransfer = Callable[[str, int, int], None]  # a file's name, bytes that are there, bytes in all


class Door:
    """Asks the daemon. One that was there and is gone is waited for; one that never was is an error at once.

    Every question of the clients may be asked twice without harm: that is what makes asking again after a restart safe.
    """

    def __init__(self, where: Where, *, restart_s: float = RESTART_S, on_notice: OnNotice = logger.warning) -> None:
        """`restart_s` is how long a restarting daemon is waited for; `on_notice` hears what people should know."""
        self._links = Links(where)
        self._restart_s = restart_s
        self.on_notice = on_notice
        self.on_transfer: OnTransfer | None = None
        self._met = False
        self._gone = False

    def transfers(self, name: str) -> Callable[[int, int], None] | None:
        """Who hears how far the file of that name is; None: nobody."""
        return partial(self.on_transfer, name) if self.on_transfer is not None else None

    def close(self) -> None:
        """Leave; the daemon ends what this client still waited for (jobs go on)."""
        self._links.close()

    async def call(self, kind: str, /, *, frames: tuple[bytes, ...] = (), **fields: Any) -> Mapping[str, Any]:
        """The fields of the answer.

        Raises:
            DaemonUnreachableError: nobody answers, and nobody came back in time.
            FarmError: what the daemon reported.
        """
        return (await self.ask(kind, fields, frames)).fields

    async def ask(self, kind: str, fields: Mapping[str, Any], frames: tuple[bytes, ...] = ()) -> Reply:
        """As `call`, with the raw frames of the answer."""
        while True:
            try:
                reply = await self._links.call(kind, fields, frames)
            except DaemonUnreachableError as error:
                await self.back(error)
            else:
                self._met = True
                return reply

    async def stream(self, kind: str, /, **fields: Any) -> AsyncGenerator[Reply, None]:
        """What comes ahead of the answer, then the answer. Broken off, it raises; `back` tells when to ask again."""
        async with aclosing(self._links.replies(kind, fields)) as replies:
            async for reply in replies:
                self._met = True
                yield reply

    async def back(self, error: DaemonUnreachableError) -> None:
        """Return when a daemon that went away answers again.

        Raises:
            DaemonUnreachableError: `error`, when none was ever there, or none has come back in time.
        """
        if not self._met:
            raise error
        if not self._gone:
            self._gone = True
            self.on_notice(f"{error.message}; waiting up to {self._restart_s:.0f} s for it to come back")
        deadline = time.monotonic() + self._restart_s
        while time.monotonic() < deadline:
            try:
                await self._links.call("ping", {})
            except DaemonUnreachableError as latest:
                error = latest
                await asyncio.sleep(LOOK_S)
            else:
                if self._gone:
                    self._gone = False
                    self.on_notice("the farm daemon is back")
                return
        raise error
