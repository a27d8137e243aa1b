"""Leases: who had which phone when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from sqlalchemy import Connection, Double, case, func, insert, literal, or_, select, type_coerce, update

from farm.core.events import Event
from farm.core.requests import Door, LeaseClass
from farm.store.database import Database
from farm.store.records import LeaseRecord, UsageRow
from farm.store.rows import lease_of, select_leases, selector_number
from farm.store.schema import lease


class LeaseTable:
    """Statements over leases."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self) -> tuple[LeaseRecord, ...]:
        """Leases that have not ended, oldest first."""
        wanted = select_leases().where(lease.c.ended_at.is_(None)).order_by(lease.c.fence)
        return tuple(map(lease_of, self._database.rows(wanted)))

    def get(self, lease_id: str) -> LeaseRecord | None:
        """The lease of that id."""
        rows = self._database.rows(select_leases().where(lease.c.id == lease_id))
        return lease_of(rows[0]) if rows else None

    def usage(self, since: datetime, until: datetime) -> tuple[UsageRow, ...]:
        """Device-seconds within `since` .. `until` by user, device, door and class; running leases count up to `until`.

        Sums over a window are made of sums over its parts, so decaying use is read in slices.
        """
        start, stop = since.timestamp(), until.timestamp()
        granted = type_coerce(lease.c.granted_at, Double)
        ended = func.coalesce(type_coerce(lease.c.ended_at, Double), literal(stop))
        held = case((ended < stop, ended), else_=stop) - case((granted > start, granted), else_=start)
        groups = (lease.c.user, lease.c.device, lease.c.door, lease.c.lease_class)
        wanted = (
            select(*groups, func.count().label("leases"), func.sum(held).label("held_s"))
            .where(lease.c.granted_at < until, or_(lease.c.ended_at.is_(None), lease.c.ended_at > since))
            .group_by(*groups)
            .order_by(*groups)
        )
        return tuple(
            UsageRow(**{**row, "door": Door(row["door"]), "lease_class": LeaseClass(row["lease_class"])})
            for row in self._database.rows(wanted)
        )

    def jobs(self, since: datetime, until: datetime, by: str) -> dict[str, int]:
        """How many jobs had a phone within `since` .. `until`, by `by`: user, device or door."""
        column = lease.c[by]
        wanted = (
            select(column, func.count(lease.c.job.distinct()))
            .where(lease.c.granted_at < until, or_(lease.c.ended_at.is_(None), lease.c.ended_at > since))
            .where(lease.c.job != "")
            .group_by(column)
        )
        with self._database.reading() as connection:
            return {str(name): int(count) for name, count in connection.execute(wanted)}

    async def grant(self, record: LeaseRecord, events: Sequence[Event] = ()) -> None:
        """Keep a grant before anybody hears of it.

        Raises:
            StoreConflictError: the device has an open lease, or the fence was given before.
        """
        values = {**asdict(record), "door": record.door.value, "lease_class": record.lease_class.value}

        def grant(connection: Connection) -> None:
            number = selector_number(connection, record.selector)
            connection.execute(insert(lease).values({**values, "selector": number}))

        await self._database.write(grant, events)

    async def end(
        self, lease_id: str, *, ended_at: datetime, reason: str, held_s: float, events: Sequence[Event] = ()
    ) -> bool:
        """The end of a lease; False: it had ended before, or there is none."""
        end = (
            update(lease)
            .where(lease.c.id == lease_id, lease.c.ended_at.is_(None))
            .values(ended_at=ended_at, reason=reason, held_s=held_s)
        )
        return await self._database.change(end, events, last=True)

    async def extend(self, lease_id: str, expires_at: datetime | None, events: Sequence[Event] = ()) -> bool:
        """Another expiry for a lease; False: it has ended, or there is none."""
        change = update(lease).where(lease.c.id == lease_id, lease.c.ended_at.is_(None)).values(expires_at=expires_at)
        return await self._database.change(change, events)
