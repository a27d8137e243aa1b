"""Remembered phones and keys set by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, delete, select

from farm.store.database import Database
from farm.store.records import DeviceRecord
from farm.store.rows import put
from farm.store.schema import alias, device


class DeviceTable:
    """Phones the farm was told about or has adopted."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> tuple[DeviceRecord, ...]:
        """Every remembered phone, by name."""
        rows = self._database.rows(select(device).order_by(device.c.name))
        return tuple(DeviceRecord(**{**row, "adopted": bool(row["adopted"])}) for row in rows)

    async def save(self, record: DeviceRecord) -> None:
        """Insert or replace a phone.

        Raises:
            StoreConflictError: another phone has that name.
        """
        await self._database.put(device, _values(record))

    async def save_together(self, records: Sequence[DeviceRecord]) -> None:
        """Insert or replace phones that may have exchanged their names, all or none.

        Raises:
            StoreConflictError: another phone has one of the names.
        """

        def exchange(connection: Connection) -> None:
            connection.execute(delete(device).where(device.c.serial.in_([record.serial for record in records])))
            for record in records:
                put(connection, device, _values(record))

        await self._database.write(exchange)

    async def forget(self, serial: str) -> None:
        """Remove a phone."""
        await self._database.execute(delete(device).where(device.c.serial == serial))


class AliasTable:
    """Aliases set by hand, with their selectors."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> dict[str, str]:
        """Alias -> selector."""
        return {row["alias"]: row["selector"] for row in self._database.rows(select(alias))}

    async def save(self, name: str, selector: str) -> None:
        """Set an alias."""
        await self._database.put(alias, {"alias": name, "selector": selector})

    async def forget(self, name: str) -> bool:
        """Remove an alias; whether there was one."""
        return await self._database.change(delete(alias).where(alias.c.alias == name))


def _values(record: DeviceRecord) -> dict[str, Any]:
    return {**asdict(record), "adopted": int(record.adopted), "labels": dict(record.labels)}
