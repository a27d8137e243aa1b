"""Remembered phones and keys set by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Table, delete, insert, select, update

from farm.store.database import Database
from farm.store.records import DeviceRecord
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
        await self._database.write(lambda connection: _put(connection, record))

    async def save_together(self, records: Sequence[DeviceRecord]) -> None:
        """Insert or replace phones that may have exchanged their names, all or none.

        Raises:
            StoreConflictError: another phone has one of the names.
        """

        def exchange(connection: Connection) -> None:
            connection.execute(delete(device).where(device.c.serial.in_([record.serial for record in records])))
            for record in records:
                _put(connection, record)

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
        values = {"alias": name, "selector": selector}
        await self._database.write(lambda connection: put(connection, alias, {"alias": name}, values))

    async def forget(self, name: str) -> bool:
        """Remove an alias; whether there was one."""
        return await self._database.change(delete(alias).where(alias.c.alias == name))


def _put(connection: Connection, record: DeviceRecord) -> None:
    values = {**asdict(record), "adopted": int(record.adopted), "labels": dict(record.labels)}
    put(connection, device, {"serial": record.serial}, values)


def put(connection: Connection, table: Table, key: dict[str, Any], values: dict[str, Any]) -> None:
    """Insert or replace the row of a key. Each engine spells an upsert its own way; one writer needs none."""
    same = [table.c[name] == value for name, value in key.items()]
    if connection.execute(update(table).where(*same).values(values)).rowcount == 0:
        connection.execute(insert(table).values(values))
