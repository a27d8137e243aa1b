"""A store of leases in memory, that can be slow, full or refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from farm.common.errors import Code, FarmError
from farm.common.events import Event, UncommittedEvents
from farm.store.leases import LeaseRecord
from farm.store.mailbox import Letter
from farm.store.writer import StoreWriteError


class MemoryKeeper:
    """`store.leases` without a database. Commits take a turn of the loop, or until `gate` is set."""

    def __init__(self) -> None:
        self.rows: dict[str, LeaseRecord] = {}
        self.events: list[Event] = []
        self.to_head: list[Letter] = []
        self.full = False
        self.refuses: dict[str, Exception] = {}  # by device
        self.gate = asyncio.Event()
        self.gate.set()
        self.tries = 0

    def open(self) -> tuple[LeaseRecord, ...]:
        return tuple(row for row in self.rows.values() if row.ended_at is None)

    async def grant(self, record: LeaseRecord, events: Sequence[Event] = (), letter: Letter | None = None) -> None:
        await self._commit(record.device)
        if any(row.device == record.device for row in self.open()):
            raise FarmError(f"{record.device} has an open lease", Code.STORE_CONFLICT)
        self._keep(record, events)

    async def end(
        self,
        lease_id: str,
        *,
        ended_at: datetime,
        reason: str,
        held_s: float,
        events: Sequence[Event] = (),
        letter: Letter | None = None,
    ) -> bool:
        await self._commit(self.rows[lease_id].device if lease_id in self.rows else "")
        return self._change(lease_id, events, letter, ended_at=ended_at, reason=reason, held_s=held_s)

    async def end_unarmed(
        self, lease_id: str, *, ended_at: datetime, reason: str, events: Sequence[Event] = ()
    ) -> bool:
        await self._commit(self.rows[lease_id].device)
        armed = self.rows[lease_id].armed_at is not None
        return not armed and self._change(lease_id, events, None, ended_at=ended_at, reason=reason, held_s=0.0)

    async def add_cleaning(self, lease_id: str, seconds: float, events: Sequence[Event] = ()) -> bool:
        await self._commit(self.rows[lease_id].device)
        self._keep(replace(self.rows[lease_id], cleaned_s=seconds), events)
        return True

    async def extend(
        self, lease_id: str, expires_at: datetime | None, events: Sequence[Event] = (), letter: Letter | None = None
    ) -> bool:
        await self._commit(self.rows[lease_id].device if lease_id in self.rows else "")
        return self._change(lease_id, events, letter, expires_at=expires_at)

    async def _commit(self, device: str) -> None:
        self.tries += 1
        await asyncio.sleep(0)
        await self.gate.wait()
        if self.full:
            raise StoreWriteError("no space left on device")
        if device in self.refuses:
            raise self.refuses[device]

    def _change(self, lease_id: str, events: Sequence[Event], letter: Letter | None, **changes: object) -> bool:
        row = self.rows.get(lease_id)
        if row is None or row.ended_at is not None:
            if isinstance(events, UncommittedEvents):
                events.drop()
            return False
        self._keep(replace(row, **changes), events)
        if letter is not None:
            self.to_head.append(letter)
        return True

    def _keep(self, record: LeaseRecord, events: Sequence[Event]) -> None:
        self.rows[record.id] = record
        self.events.extend(events)
        if isinstance(events, UncommittedEvents):
            events.settle(committed=True)
