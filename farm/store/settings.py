"""What operators add while the daemon runs: reservations and toolchains."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Double, delete, insert, select, type_coerce

from farm.core.errors import UserError
from farm.core.events import Event
from farm.core.selector import Selector
from farm.store.columns import UtcTime, utc_time
from farm.store.database import Database
from farm.store.records import ReservationRecord, ToolchainRecord
from farm.store.rows import selector_number
from farm.store.schema import reservation, selector, toolchain

logger = logging.getLogger(__name__)


def read_reservations(connection: Connection) -> tuple[tuple[ReservationRecord, ...], tuple[str, ...]]:
    """Every reservation by start, and a line for each that cannot be read: one such row must not cost the others."""
    columns = [
        type_coerce(column, Double).label(column.name) if isinstance(column.type, UtcTime) else column
        for column in reservation.c
        if column is not reservation.c.selector
    ]
    wanted = (
        select(*columns, selector.c.text.label("selector"))
        .join_from(reservation, selector)
        .order_by(reservation.c.starts_at, reservation.c.id)
    )
    records, findings = [], []
    for row in connection.execute(wanted).mappings():
        try:
            Selector.parse(row["selector"])
            times = {name: utc_time(row[name]) for name in ("starts_at", "ends_at")}
            records.append(ReservationRecord(**{**row, **times}))
        except (UserError, ValueError, OverflowError, OSError, TypeError) as error:
            findings.append(f"reservation {row['id']} cannot be read: {error}")
    return tuple(records), tuple(findings)


class ReservationTable:
    """Statements over reservations."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> tuple[ReservationRecord, ...]:
        """Every reservation that can be read, past ones too, by start; of the others the log tells."""
        with self._database.reading() as connection:
            records, findings = read_reservations(connection)
        for finding in findings:
            logger.error("%s; it is left out until its row is mended or deleted", finding)
        return records

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
        return await self._database.change(delete(reservation).where(reservation.c.id == reservation_id), events)


class ToolchainTable:
    """Statements over toolchains added by command."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> tuple[ToolchainRecord, ...]:
        """Every toolchain, by name."""
        rows = self._database.rows(select(toolchain).order_by(toolchain.c.name))
        return tuple(ToolchainRecord(**row) for row in rows)

    async def add(self, record: ToolchainRecord, events: Sequence[Event] = ()) -> None:
        """Insert or replace a toolchain."""
        await self._database.put(toolchain, asdict(record), events)

    async def remove(self, name: str, events: Sequence[Event] = ()) -> bool:
        """Remove a toolchain; whether there was one."""
        return await self._database.change(delete(toolchain).where(toolchain.c.name == name), events)
