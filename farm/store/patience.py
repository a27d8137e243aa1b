"""Writing until the store is back: the one rule of everybody whose change is decided already and must be kept.

A store that cannot write (StoreWriteError: disk full, file gone, server away) only delays it. Whatever else a write
raises is about this one change: trying again would not help, and the caller decides what becomes of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from farm.store.writer import StoreWriteError

RETRY_S = 1.0  # a store that says when it can write again is asked at once; this is for one that does not

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Patience:
    """Writes again and again, for any number of writers at once."""

    def __init__(self) -> None:
        self._back = asyncio.Event()

    def store_problem(self, failing: bool) -> None:
        """The store cannot write, or can again (`Store.on_problem`)."""
        if not failing:
            self._back.set()

    async def write(self, write: Callable[[], Awaitable[T]], what: str) -> T:
        """What `write` returns as soon as the store can write; it is called anew for each try.

        Args:
            write: drafts its own events: while the store cannot write, nothing is held back.
            what: is written, for the log. The first failure is news, repeats are noise.
        """
        waiting = False
        while True:
            self._back.clear()
            try:
                written = await write()
            except StoreWriteError as error:
                level = logging.DEBUG if waiting else logging.WARNING
                logger.log(level, "%s: kept in memory until it can be written: %s", what, error)
                waiting = True
            else:
                if waiting:
                    logger.info("%s: written", what)
                return written
            try:
                async with asyncio.timeout(RETRY_S):
                    await self._back.wait()
            except TimeoutError:
                continue
