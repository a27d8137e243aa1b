"""Rungs of the recovery ladder that were taken, and phones in quarantine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from sqlalchemy import Connection, delete, insert, select, update

from farm.core.events import Event
from farm.store.database import Database
from farm.store.records import QuarantineRecord, RecoveryRecord
from farm.store.schema import proven, quarantine, recovery


class RecoveryTable:
    """Statements over both."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def since(self, at: datetime, serial: str = "") -> tuple[RecoveryRecord, ...]:
        """Rungs that began after `at`, on one phone or on all, oldest first."""
        wanted = select(recovery).where(recovery.c.began_at > at).order_by(recovery.c.began_at, recovery.c.id)
        if serial:
            wanted = wanted.where(recovery.c.serial == serial)
        return tuple(RecoveryRecord(**row) for row in self._database.rows(wanted))

    async def begin(self, record: RecoveryRecord, events: Sequence[Event] = ()) -> None:
        """Keep a rung that is taken now."""
        await self._database.execute(insert(recovery).values(asdict(record)), events)

    async def end(self, rung: str, took_s: float, outcome: str, detail: str, events: Sequence[Event] = ()) -> None:
        """Keep how a rung (its id) ended."""
        ended = update(recovery).where(recovery.c.id == rung).values(took_s=took_s, outcome=outcome, detail=detail)
        await self._database.execute(ended, events)

    async def interrupted(self, outcome: str, detail: str) -> None:
        """Whatever was under way when the daemon ended is over; nobody knows how long it took."""
        over = (
            update(recovery)
            .where(recovery.c.outcome.is_(None), recovery.c.rung != "quarantine")
            .values(took_s=0.0, outcome=outcome, detail=detail)
        )
        await self._database.execute(over)

    def open_quarantines(self) -> tuple[RecoveryRecord, ...]:
        """Rungs `quarantine` that have not ended, oldest first."""
        wanted = select(recovery).where(recovery.c.outcome.is_(None), recovery.c.rung == "quarantine")
        rows = self._database.rows(wanted.order_by(recovery.c.began_at, recovery.c.id))
        return tuple(RecoveryRecord(**row) for row in rows)

    async def redate(self, now: datetime) -> None:
        """Rungs that seem to be taken later than `now`, by a clock that was wrong, were taken now."""
        later = update(recovery).where(recovery.c.began_at > now, recovery.c.rung != "quarantine").values(began_at=now)
        await self._database.execute(later)

    def quarantined(self) -> tuple[QuarantineRecord, ...]:
        """Every phone that is kept away from users."""
        return tuple(QuarantineRecord(**row) for row in self._database.rows(select(quarantine)))

    async def keep_away(self, record: QuarantineRecord) -> None:
        """Keep why a phone is in quarantine."""
        await self._database.put(quarantine, asdict(record))

    async def let_go(self, serial: str) -> None:
        """The phone is in quarantine no more."""
        await self._database.execute(delete(quarantine).where(quarantine.c.serial == serial))

    def proven(self) -> dict[str, str]:
        """Serial -> the bundle that last passed its check there."""
        return {row["serial"]: row["bundle"] for row in self._database.rows(select(proven))}

    async def prove(self, serial: str, bundle: str) -> None:
        """The bundle passed its check there."""
        await self._database.put(proven, {"serial": serial, "bundle": bundle})

    async def moved(self, serial: str, to: str) -> None:
        """Adb lists the phone under another serial from now on: budgets and quarantine are the phone's."""

        def move(connection: Connection) -> None:
            connection.execute(update(recovery).where(recovery.c.serial == serial).values(serial=to))
            for table in (quarantine, proven):
                connection.execute(delete(table).where(table.c.serial == to))
                connection.execute(update(table).where(table.c.serial == serial).values(serial=to))

        await self._database.write(move)
