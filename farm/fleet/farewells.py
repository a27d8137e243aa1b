"""What is asked of a phone beside work, and goes on by itself: stop its server, be cleaned, get its power back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Protocol

from farm.core.errors import PhoneError

FAREWELL_TIMEOUT_S = 20.0

log = logging.getLogger(__name__)


class Named(Protocol):
    """Whose farewells they are."""

    name: str


class Farewells:
    """Those of one phone that have not ended."""

    def __init__(self, owner: Named) -> None:
        self._owner = owner
        self.pending: set[asyncio.Task[None]] = set()

    async def said(self) -> tuple[asyncio.Task[None], ...]:
        """Wait for them, however they end; giving up waiting does not end them."""
        pending = tuple(self.pending)
        if pending:
            await asyncio.wait(pending)
        return pending

    async def heard(self) -> None:
        """Wait for them; raises what failed there.

        Raises:
            PhoneError: among them, the phone went away and was let go meanwhile, or did not answer.
        """
        name = self._owner.name
        for task in await self.said():
            if task.cancelled():
                raise PhoneError(f"{name} went away meanwhile", hint="connect it and try again")
            try:
                task.result()
            except TimeoutError as error:
                raise PhoneError(f"{name} did not answer while it was given back", hint="try again") from error

    def say(
        self, what: Coroutine[object, object, None], limit_s: float | None = FAREWELL_TIMEOUT_S
    ) -> asyncio.Task[None]:
        """Begin one; it is given up after `limit_s`."""

        async def bounded() -> None:
            async with asyncio.timeout(limit_s):
                await what

        task = asyncio.create_task(bounded(), name=f"farewell {self._owner.name}")
        self.pending.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.pending.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.warning("%s: %s", self._owner.name, error)
