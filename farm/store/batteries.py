"""What each phone's battery was like, day by day."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import Connection, delete, insert, select

from farm.core.battery_care import KEPT_DAYS, BatteryDay
from farm.store.database import Database
from farm.store.rows import put
from farm.store.schema import battery_day

_DAY = [column for column in battery_day.c if column.name != "serial"]


class BatteryTable:
    """Days by serial."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def days(self, serial: str) -> tuple[BatteryDay, ...]:
        """A phone's days that are kept, the oldest first."""
        wanted = select(*_DAY).where(battery_day.c.serial == serial).order_by(battery_day.c.day)
        return tuple(BatteryDay(**row) for row in self._database.rows(wanted))

    async def keep(self, serial: str, day: BatteryDay) -> None:
        """Insert or replace one day; days beyond `KEPT_DAYS` go."""

        def write(connection: Connection) -> None:
            put(connection, battery_day, {"serial": serial, **asdict(day)})
            own = battery_day.c.serial == serial
            oldest = select(battery_day.c.day).where(own).order_by(battery_day.c.day.desc()).offset(KEPT_DAYS).limit(1)
            if (beyond := connection.execute(oldest).scalar()) is not None:
                connection.execute(delete(battery_day).where(own, battery_day.c.day <= beyond))

        await self._database.write(write)

    async def moved(self, serial: str, to: str) -> None:
        """Adb lists the phone under another serial from now on: its battery is the same."""

        def move(connection: Connection) -> None:
            rows = connection.execute(select(*_DAY).where(battery_day.c.serial == serial)).mappings().all()
            connection.execute(delete(battery_day).where(battery_day.c.serial == serial))
            days = [row["day"] for row in rows]
            connection.execute(delete(battery_day).where(battery_day.c.serial == to, battery_day.c.day.in_(days)))
            if rows:
                connection.execute(insert(battery_day), [{"serial": to, **row} for row in rows])

        await self._database.write(move)
