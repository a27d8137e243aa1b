"""What leasing writes down: grants, extensions and ends; in order per device, again and again until the store has them.

Nothing waits for it: whoever adds an entry is called back once it is committed. An event tells its change, so each try
drafts its own: while the store cannot write, nothing is held back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from farm.core.errors import HostError
from farm.core.events import Event, EventLog
from farm.core.requests import Lease
from farm.leasing.model import LeaseKeeper

RETRY_S = 1.0  # a store that says when it can write again is asked at once; this is for one that does not
FLUSH_LIMIT_S = 5.0  # a stopping daemon's last entries: a commit takes milliseconds, or the disk is full for long

Told = tuple[str, str, Mapping[str, object]]  # kind, subject, data of an event

log = logging.getLogger(__name__)


def told(kind: str, lease: Lease, **data: object) -> Told:
    """An event about a lease, as every one of them begins."""
    request = lease.request
    facts = {"device": lease.device, "user": request.user, "key": request.key, "fence": lease.fence}
    return kind, lease.id, facts | data


@dataclass(slots=True, eq=False)
class Entry:
    """One change that must be kept, and the event that tells it, if any does."""

    write: Callable[[Sequence[Event]], Awaitable[object]]
    told: Told | None
    done: Callable[[Any], None] = lambda _: None  # called with what `write` returned
    writing: bool = False
    dropped: bool = False


class LeaseBook:
    """Entries on their way to the store. One task per device that has any."""

    def __init__(self, events: EventLog) -> None:
        self._loop = asyncio.get_running_loop()
        self._events = events
        self._lines: dict[str, deque[Entry]] = {}  # by device
        self._tasks: set[asyncio.Task[None]] = set()
        self._better = asyncio.Event()  # something was written, or the store says that it can write
        self._problem = False

    def add(self, device: str, entry: Entry) -> None:
        """Write `entry` after what was added for this device before."""
        line = self._lines.get(device)
        if line is not None:
            line.append(entry)
            return
        line = self._lines[device] = deque((entry,))
        task = self._loop.create_task(self._write(device, line), name=f"leases of {device}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self, keeper: LeaseKeeper, lease: Lease, granted_at: datetime, now_s: float, reason: str) -> None:
        """Write the end of `lease`, at `now_s` of the clock that it was granted by.

        What is kept is how long it was held: a wall clock that was set in between makes no use of a phone.
        """
        held_s = max(0.0, now_s - lease.granted_at)
        ended_at = granted_at + timedelta(seconds=held_s)

        def write(events: Sequence[Event]) -> Awaitable[bool]:
            return keeper.end(lease.id, ended_at=ended_at, reason=reason, held_s=held_s, events=events)

        event = told("lease.released", lease, reason=reason, held_s=round(held_s, 3))
        self.add(lease.device, Entry(write, event))

    def drop(self, entry: Entry) -> bool:
        """Take an entry back; False when it is being written or has been."""
        if not entry.writing:
            entry.dropped = True
        return entry.dropped

    def try_again(self) -> None:
        """The store can write again."""
        self._better.set()

    async def flush(self) -> None:
        """Wait until everything is written, FLUSH_LIMIT_S at most; what is left is given up."""
        deadline = self._loop.time() + FLUSH_LIMIT_S
        while self._tasks and (left := deadline - self._loop.time()) > 0:
            await asyncio.wait(tuple(self._tasks), timeout=left)  # an entry's end may add another
        unwritten = tuple(self._tasks)
        for task in unwritten:
            task.cancel()
        if unwritten:
            log.error("leases of %d devices could not be written; the next start ends them", len(unwritten))
        await asyncio.gather(*unwritten, return_exceptions=True)

    async def _write(self, device: str, line: deque[Entry]) -> None:
        while line:
            entry = line[0]
            if not entry.dropped:
                entry.writing = True
                written = await self._try(device, entry)
                entry.writing = False
                if not written:
                    await self._until_better()
                    continue
            line.popleft()
        del self._lines[device]

    async def _try(self, device: str, entry: Entry) -> bool:
        """Write an entry once, and tell its owner; False when it must be tried again."""
        try:
            with self._events.drafted(*(() if entry.told is None else (entry.told,))) as drafts:
                value = await entry.write(drafts)
        except Exception as error:
            # The first failure is news, repeats are noise. A full disk is no bug, anything else has its trace.
            bug = not isinstance(error, HostError)
            level = logging.DEBUG if self._problem else logging.ERROR
            log.log(level, "the leases of %s cannot be written: %s", device, error, exc_info=error if bug else None)
            self._problem = True
            return False
        if self._problem:
            self._problem = False
            self._better.set()
            log.warning("leases are written again")
        try:
            entry.done(value)
        except Exception:
            log.exception("what follows a written lease of %s failed", device)
        return True

    async def _until_better(self) -> None:
        self._better.clear()
        try:
            async with asyncio.timeout(RETRY_S):
                await self._better.wait()
        except TimeoutError:
            return
