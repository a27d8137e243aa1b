"""The head of this daemon: in this process, or a process `farm head`, with letters over the database between them."""

from __future__ import annotations

import contextlib

from farm.common.errors import HostError
from farm.common.tasks import BackgroundTasks, Begin
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
        self.attempts: Attempts  # of this host, from before `tasks`

    def tasks(self) -> dict[str, Begin]:
        """The tasks that run as long as the daemon, by name. The head decides about attempts of the daemon before."""
        return {"letters of the head": self._read, "attempts of the daemon before": self.attempts.finish_leftovers}

    async def stop(self) -> None:
        """Report to the head that this host stops, and read no more letters."""
        await self.head.stop()
        await self._listener.close()
        await self._wake_ups.close()

    async def _read(self) -> None:
        within_s = 0.0
        while True:
            with contextlib.suppress(HostError):  # the writer reports it
                await self.head.take(within_s)
            within_s = await self._listener.wait()


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
