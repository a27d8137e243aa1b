"""The head of this daemon: in this process, or a process `farm head`, with letters over the database between them."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from farm.common.errors import HostError
from farm.common.tasks import BackgroundTasks
from farm.config import FarmConfig
from farm.config.lease_policy import lease_policy
from farm.daemon.persistence import Persistence
from farm.head.head import Head
from farm.head.local import LocalHead
from farm.head.write_queue import LeaseWriteQueue
from farm.jobs.attempts import Attempts
from farm.kinds import KINDS
from farm.leasing.remote_head import RemoteHead
from farm.store.mailbox import WakeUpListener, WakeUps

TRY_AGAIN_S = 1.0  # after an error of the database

log = logging.getLogger(__name__)


class HeadLetters:
    """Reads the letters of a head apart for as long as the daemon serves, also after outages of the database."""

    def __init__(self, host: str, persistence: Persistence, writes: LeaseWriteQueue) -> None:
        """Listen for wake-ups of this host."""
        store = persistence.store
        self._wake_ups = WakeUps(store.database)
        self._listener = WakeUpListener(store.database, host)
        self.head = RemoteHead(
            host,
            store.epoch,
            store.mailbox,
            store.leases,
            writes,
            self._wake_ups.wake,
            self._listener.expect,
            wall=store.now,
        )
        self.attempts: Attempts  # of this host, from before `run`

    async def run(self) -> None:
        """Read letters for ever, and end the attempts of the daemon before, whose jobs the head decides about.

        Raises:
            HostRemovedError: this host was removed from the lab.
        """
        left = asyncio.create_task(self._end_left(), name="attempts of the daemon before")
        within_s = 0.0
        try:
            while True:
                self.head.check_belongs()
                if left.done():
                    left.result()
                with contextlib.suppress(HostError):  # the writer reports it
                    await self.head.take(within_s)
                within_s = await self._listener.wait()
        finally:
            left.cancel()

    async def stop(self) -> None:
        """Report to the head that this host stops, and read no more letters."""
        await self.head.stop()
        await self._listener.close()
        await self._wake_ups.close()

    async def _end_left(self) -> None:
        problem = ""
        while True:
            try:
                await self.attempts.end_left()
            except HostError as error:
                if error.message != problem:
                    log.warning("attempts of the daemon before cannot be ended yet: %s", error.message)
                problem = error.message
                await asyncio.sleep(TRY_AGAIN_S)
            else:
                return


async def open_head(
    config: FarmConfig,
    stack: contextlib.AsyncExitStack,
    persistence: Persistence,
    writes: LeaseWriteQueue,
    tasks: BackgroundTasks,
) -> tuple[Head, HeadLetters | None]:
    """The head; with a head apart also its letters. Leasing may report to it at once.

    Raises:
        HostError: the database is away.
    """
    if not config.lab.head_apart:
        policy, store = lease_policy(config), persistence.store
        return await LocalHead.open(store, persistence.events, writes, policy, KINDS, tasks), None
    letters = HeadLetters(config.lab.host, persistence, writes)
    stack.push_async_callback(letters.stop)
    await letters.head.begin()
    return letters.head, letters
