"""What leasing writes down: grants, extensions and ends; in order per device, as long as the store cannot write.

Nothing waits for it: whoever adds an entry is called back once it is committed, or once the store has refused it. What
it refuses is given up, and the device's next entry follows.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from farm.core.events import Event, EventLog, Told
from farm.core.requests import Lease
from farm.leasing.model import LeaseKeeper
from farm.store.patience import Patience
from farm.store.records import LeaseRecord

FLUSH_LIMIT_S = 5.0  # a stopping daemon's last entries: a commit takes milliseconds, or the disk is full for long

log = logging.getLogger(__name__)


def told(kind: str, lease: Lease, **data: object) -> Told:
    """An event about a lease, as every one of them begins."""
    request = lease.request
    return kind, lease.id, {**_facts(lease.device, request.user, request.key, lease.fence), **data}


def released(lease: LeaseRecord, reason: str, held_s: float) -> Told:
    """The event that ends every lease."""
    facts = _facts(lease.device, lease.user, lease.key, lease.fence)
    return "lease.released", lease.id, {**facts, "reason": reason, "held_s": round(held_s, 3)}


def _facts(device: str, user: str, key: str, fence: int) -> dict[str, object]:
    return {"device": device, "user": user, "key": key, "fence": fence}


def record_of(lease: Lease, granted_at: datetime) -> LeaseRecord:
    """A lease as the store keeps it."""
    request = lease.request
    longest_s = request.longest_s
    return LeaseRecord(
        id=lease.id,
        device=lease.device,
        user=request.user,
        door=request.door,
        job=request.job,
        lease_class=request.lease_class,
        selector=str(request.selector),
        key=request.key,
        fence=lease.fence,
        granted_at=granted_at,
        expires_at=None if longest_s is None else granted_at + timedelta(seconds=longest_s),
    )


@dataclass(slots=True, eq=False)
class Entry:
    """One change that must be kept, and the event that tells it, if any does."""

    write: Callable[[Sequence[Event]], Awaitable[object]]
    told: Told | None
    done: Callable[[Any], None] = lambda _: None  # called with what `write` returned
    refused: Callable[[], None] = lambda: None  # called when the store will never have it
    writing: bool = False
    dropped: bool = False


class LeaseBook:
    """Entries on their way to the store. One task per device that has any."""

    def __init__(self, events: EventLog) -> None:
        self._loop = asyncio.get_running_loop()
        self._events = events
        self._lines: dict[str, deque[Entry]] = {}  # by device
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused: set[str] = set()  # devices whose last entry was refused
        self._patience = Patience()

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

        self.add(lease.device, Entry(write, released(record_of(lease, granted_at), reason, held_s)))

    def drop(self, entry: Entry) -> bool:
        """Take an entry back; False when it is being written or has been."""
        if not entry.writing:
            entry.dropped = True
        return entry.dropped

    def store_problem(self, failing: bool) -> None:
        """The store cannot write, or can again."""
        self._patience.store_problem(failing)

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
            try:
                await self._settle(device, line[0])
            except Exception:
                log.exception("what follows a written lease of %s failed", device)
            line.popleft()
        del self._lines[device]

    async def _settle(self, device: str, entry: Entry) -> None:
        """Write an entry, unless it was taken back by then, and tell its owner what became of it."""
        try:
            value = await self._patience.write(partial(self._try, entry), f"leases of {device}")
        except Exception as error:
            # The first refusal is news, repeats are noise.
            level = logging.DEBUG if device in self._refused else logging.ERROR
            log.log(level, "a lease of %s cannot be written and is given up: %s", device, error, exc_info=error)
            self._refused.add(device)
            entry.refused()
            return
        if not entry.dropped:
            self._refused.discard(device)
            entry.done(value)

    async def _try(self, entry: Entry) -> object:
        """Write an entry once. Between two tries it may be taken back."""
        if entry.dropped:
            return None
        entry.writing = True
        try:
            with self._events.drafted(*(() if entry.told is None else (entry.told,))) as drafts:
                return await entry.write(drafts)
        finally:
            entry.writing = False
