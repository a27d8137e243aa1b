"""What operators add while the daemon runs: reservations and toolchains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from farm.core.events import Event
from farm.store.database import Database, must_change
from farm.store.devices import put
from farm.store.records import ReservationRecord, ToolchainRecord
from farm.store.rows import selector_number
from farm.store.schema import reservation, selector, toolchain


class ReservationTable:
    """Statements over reservations."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> tuple[ReservationRecord, ...]:
        """Every reservation, past ones too, by start."""
        columns = [column for column in reservation.c if column is not reservation.c.selector]
        wanted = (
            select(*columns, selector.c.text.label("selector"))
            .join_from(reservation, selector)
            .order_by(reservation.c.starts_at, reservation.c.id)
        )
        with self._database.reading() as connection:
            return tuple(ReservationRecord(**row) for row in connection.execute(wanted).mappings())

    async def add(self, record: ReservationRecord, events: Sequence[Event] = ()) -> None:
        """Keep a reservation.

        Raises:
            StoreConflictError: it ends before it begins, or there is one of that id.
        """
        values: dict[str, Any] = asdict(record)

        def add(connection: Connection) -> None:
            number = selector_number(connection, record.selector)
            connection.execute(insert(reservation).values({**values, "selector": number}))

        await self._database.write(add, events)

    async def remove(self, reservation_id: str, events: Sequence[Event] = ()) -> bool:
        """Remove a reservation; whether there was one."""
        statement = delete(reservation).where(reservation.c.id == reservation_id)
        return await self._database.write_if(
            lambda connection: must_change(connection.execute(statement).rowcount), events
        )


class ToolchainTable:
    """Statements over toolchains added by command."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> tuple[ToolchainRecord, ...]:
        """Every toolchain, by name."""
        with self._database.reading() as connection:
            rows = connection.execute(select(toolchain).order_by(toolchain.c.name)).mappings()
            return tuple(ToolchainRecord(**row) for row in rows)

    async def add(self, record: ToolchainRecord, events: Sequence[Event] = ()) -> None:
        """Insert or replace a toolchain."""
        values: dict[str, Any] = asdict(record)
        await self._database.write(lambda connection: put(connection, toolchain, {"name": record.name}, values), events)

    async def remove(self, name: str, events: Sequence[Event] = ()) -> bool:
        """Remove a toolchain; whether there was one."""
        statement = delete(toolchain).where(toolchain.c.name == name)
        return await self._database.write_if(
            lambda connection: must_change(connection.execute(statement).rowcount), events
        )
