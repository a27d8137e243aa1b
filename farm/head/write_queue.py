"""Writes of leasing on their way to the store: grants, extensions and ends, in order per device.

No caller waits: `done` is called once an entry is committed, `refused` once the store has refused it. A refused entry
is given up, and the device's next entry follows. While the store cannot write, entries stay queued.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from farm.common.errors import log_error
from farm.common.events import Event, EventDraft, EventLog
from farm.model.requests import Lease
from farm.store.database import BackgroundWrites
from farm.store.leases import LeaseRecord, LeaseTable
from farm.store.mailbox import Letter

log = logging.getLogger(__name__)


def lease_event(kind: str, lease: Lease, **data: object) -> EventDraft:
    """An event about a lease, with the fields that all of them have."""
    request = lease.request
    return kind, lease.id, {**_facts(lease.device, request.user, request.key, lease.fence), **data}


def released_event(lease: LeaseRecord, reason: str, held_s: float) -> EventDraft:
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
        source=request.source,
        job=request.job,
        lease_class=request.lease_class,
        selector=str(request.selector),
        key=request.key,
        fence=lease.fence,
        granted_at=granted_at,
        expires_at=None if longest_s is None else granted_at + timedelta(seconds=longest_s),
        holder_host=request.holder_host,
        match_sha256=request.match_sha256,
    )


@dataclass(slots=True, eq=False)
class LeaseWrite:
    """One change that must be stored, and the event that reports it, if any."""

    write: Callable[[Sequence[Event]], Awaitable[object]]
    event: EventDraft | None
    done: Callable[[Any], None] = lambda _: None  # called with what `write` returned
    refused: Callable[[], None] = lambda: None  # called when the store will never have it
    writing: bool = False
    dropped: bool = False


class LeaseWriteQueue:
    """Entries on their way to the store."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._refused: set[str] = set()  # devices whose last entry was refused
        self._writes = BackgroundWrites()
        self.store_problem = self._writes.on_store_problem
        self.flush = self._writes.close

    def add(self, device: str, entry: LeaseWrite) -> None:
        """Write `entry` after what was added for this device before."""

        def done(value: object) -> None:
            if not entry.dropped:
                self._refused.discard(device)
                entry.done(value)

        def refused(error: Exception) -> None:
            # The first refusal is news, repeats are noise.
            level = logging.DEBUG if device in self._refused else logging.ERROR
            log_error(log, error, "a change of %s was refused by the store and is dropped", device, level=level)
            self._refused.add(device)
            entry.refused()

        self._writes.add(f"leases of {device}", partial(self._try, entry), done, refused)

    def end(
        self,
        table: LeaseTable,
        lease: Lease,
        granted_at: datetime,
        now_s: float,
        reason: str,
        letter: Letter | None = None,
    ) -> None:
        """Write the end of `lease`, at `now_s` of the clock that it was granted by, with the letter to a head apart.

        What is kept is how long it was held: a wall clock that was set in between makes no use of a phone.
        """
        held_s = max(0.0, now_s - lease.granted_at)
        ended_at = granted_at + timedelta(seconds=held_s)

        def write(events: Sequence[Event]) -> Awaitable[bool]:
            return table.end(lease.id, ended_at=ended_at, reason=reason, held_s=held_s, events=events, letter=letter)

        self.add(lease.device, LeaseWrite(write, released_event(record_of(lease, granted_at), reason, held_s)))

    def end_unarmed(
        self, table: LeaseTable, lease: Lease, granted_at: datetime, reason: str, done: Callable[[bool], None]
    ) -> None:
        """Write the end of a lease that its host has not armed; `done` is called with whether it had not."""

        def write(events: Sequence[Event]) -> Awaitable[bool]:
            return table.end_unarmed(lease.id, ended_at=granted_at, reason=reason, events=events)

        self.add(lease.device, LeaseWrite(write, released_event(record_of(lease, granted_at), reason, 0.0), done))

    def drop(self, entry: LeaseWrite) -> bool:
        """Take an entry back; False when it is being written or has been."""
        if not entry.writing:
            entry.dropped = True
        return entry.dropped

    async def _try(self, entry: LeaseWrite) -> object:
        """Write an entry once. Between two tries it may be taken back."""
        if entry.dropped:
            return None
        entry.writing = True
        try:
            with self._events.drafted(*(() if entry.event is None else (entry.event,))) as drafts:
                return await entry.write(drafts)
        finally:
            entry.writing = False
