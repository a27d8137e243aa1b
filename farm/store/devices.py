"""Phones: remembered ones, aliases, recovery actions and quarantines, batteries day by day.

A phone is found by its host and its serial there; a phone's name is unique over all hosts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, Update, and_, delete, insert, select, update

from farm.common.events import Event
from farm.model.health import KEPT_DAYS, BatteryDay, DeviceFault, Health, Quarantine, ReleaseRule
from farm.model.identity import DeviceIdentity
from farm.store.columns import StoredValueError
from farm.store.database import Database, TableAccess, put, values_of
from farm.store.schema import alias, battery_day, device, proven, quarantine, recovery, rollout

_DAY = [column for column in battery_day.c if column.name not in ("host", "serial")]


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """A known phone, as stored."""

    serial: str
    name: str
    hardware_serial: str = ""
    pool: str = ""
    adopted: bool = False
    service: str = "in"
    ordered_by: str = ""  # user who took it out of service
    ordered_at: datetime | None = None
    address: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    identity: DeviceIdentity | None = None  # as it was last identified
    health: Health | None = None  # a recent probe
    health_at: datetime | None = None  # when that was read


@dataclass(frozen=True, slots=True)
class RecoveryRecord:
    """One recovery action that was taken."""

    id: str
    serial: str
    device: str
    action: str
    fault: str
    cause: str
    began_at: datetime
    took_s: float | None = None  # None: under way
    outcome: str | None = None
    detail: str = ""


class HostTable(TableAccess):
    """Base of the statements over one host's phones."""

    def __init__(self, database: Database, host: str = "") -> None:
        super().__init__(database)
        self.host = host  # its name in the lab; "": the only host of its database

    def _select(self, table: Table) -> Select[Any]:
        """The host's rows, as its records have them."""
        return select(*(column for column in table.c if column.name != "host")).where(table.c.host == self.host)

    def _of(self, table: Table, serial: str) -> ColumnElement[bool]:
        return and_(table.c.host == self.host, table.c.serial == serial)

    def _values(self, record: Any) -> dict[str, Any]:
        return {"host": self.host, **values_of(record)}


class DeviceTable(HostTable):
    """Phones that were configured or adopted."""

    def all(self) -> tuple[DeviceRecord, ...]:
        """Every remembered phone, by name."""
        wanted = self._select(device).order_by(device.c.name)
        return tuple(DeviceRecord(**row) for row in self._database.rows(wanted))

    async def save(self, record: DeviceRecord) -> None:
        """Insert or replace a phone.

        Raises:
            FarmError: another phone has that name.
        """
        await self._database.put(device, self._values(record))

    async def replace(self, serials: Collection[str], records: Sequence[DeviceRecord]) -> None:
        """Remove the records of these serials and store these phones, all or none: they may exchange their names.

        Raises:
            FarmError: another phone has one of the names.
        """

        def exchange(connection: Connection) -> None:
            connection.execute(delete(device).where(device.c.host == self.host, device.c.serial.in_(serials)))
            if records:
                connection.execute(insert(device), [self._values(record) for record in records])

        await self._database.write(exchange)

    async def forget(self, serial: str) -> None:
        """Remove a phone."""
        await self._database.execute(delete(device).where(self._of(device, serial)))


class AliasTable(TableAccess):
    """Aliases set by hand, with their selectors."""

    def all(self) -> dict[str, str]:
        """Alias -> selector."""
        return {row["alias"]: row["selector"] for row in self._database.rows(select(alias))}

    async def save(self, name: str, selector: str) -> None:
        """Set an alias."""
        await self._database.put(alias, {"alias": name, "selector": selector})

    async def forget(self, name: str) -> bool:
        """Remove an alias; whether there was one."""
        return await self._database.change(delete(alias).where(alias.c.alias == name))


class RecoveryTable(HostTable):
    """Recovery actions, phones in quarantine, and bundles that passed their check."""

    def since(self, at: datetime, serial: str = "") -> tuple[RecoveryRecord, ...]:
        """Actions that began after `at`, on one phone or on all, oldest first."""
        return self._actions(recovery.c.began_at > at, *([recovery.c.serial == serial] if serial else []))

    def open_quarantines(self) -> tuple[RecoveryRecord, ...]:
        """Actions `quarantine` that have not ended, oldest first."""
        return self._actions(recovery.c.outcome.is_(None), recovery.c.action == "quarantine")

    async def begin(self, record: RecoveryRecord, events: Sequence[Event] = ()) -> None:
        """Store an action that begins now."""
        await self._database.execute(insert(recovery).values(self._values(record)), events)

    async def end(self, action: str, took_s: float, outcome: str, detail: str, events: Sequence[Event] = ()) -> None:
        """Store how an action (its id) ended."""
        of = update(recovery).where(recovery.c.host == self.host, recovery.c.id == action)
        await self._database.execute(of.values(took_s=took_s, outcome=outcome, detail=detail), events)

    async def end_interrupted(self, outcome: str, detail: str) -> None:
        """End the actions that were under way when the daemon ended; their duration is unknown."""
        open_actions = self._but_quarantines().where(recovery.c.outcome.is_(None))
        await self._database.execute(open_actions.values(took_s=0.0, outcome=outcome, detail=detail))

    async def redate(self, now: datetime) -> None:
        """Date actions that a wrong clock placed after `now` to `now`."""
        await self._database.execute(self._but_quarantines().where(recovery.c.began_at > now).values(began_at=now))

    def quarantined(self) -> dict[str, Quarantine]:
        """Every phone that is withheld from users, by serial.

        Raises:
            HostError: as `Database.reading`.
        """
        with self._database.reading() as connection:
            rows = [dict(row) for row in connection.execute(self._select(quarantine)).mappings()]
            return {row.pop("serial"): _quarantine_of(row) for row in rows}

    async def add_quarantine(self, serial: str, kept: Quarantine) -> None:
        """Store why a phone is in quarantine."""
        values = values_of(kept)
        cause = values.pop("cause")
        await self._database.put(quarantine, {"host": self.host, "serial": serial, "reason": cause, **values})

    async def remove_quarantine(self, serial: str) -> None:
        """Remove a phone's quarantine."""
        await self._database.execute(delete(quarantine).where(self._of(quarantine, serial)))

    def proven(self) -> dict[str, str]:
        """Serial -> the bundle that last passed its check there."""
        return {row["serial"]: row["bundle"] for row in self._database.rows(self._select(proven))}

    async def set_proven(self, serial: str, bundle: str) -> None:
        """Store that the bundle passed its check on that phone."""
        await self._database.put(proven, {"host": self.host, "serial": serial, "bundle": bundle})

    async def change_serial(self, serial: str, to: str) -> None:
        """Follow a phone to another serial: budgets and quarantine are the phone's."""

        def move(connection: Connection) -> None:
            connection.execute(update(recovery).where(self._of(recovery, serial)).values(serial=to))
            for table in (quarantine, proven):
                connection.execute(delete(table).where(self._of(table, to)))
                connection.execute(update(table).where(self._of(table, serial)).values(serial=to))

        await self._database.write(move)

    def _actions(self, *conditions: ColumnElement[bool]) -> tuple[RecoveryRecord, ...]:
        wanted = self._select(recovery).where(*conditions).order_by(recovery.c.began_at, recovery.c.id)
        return tuple(RecoveryRecord(**row) for row in self._database.rows(wanted))

    def _but_quarantines(self) -> Update:
        return update(recovery).where(recovery.c.host == self.host, recovery.c.action != "quarantine")


def _quarantine_of(row: Mapping[str, Any]) -> Quarantine:
    try:
        fault = DeviceFault(row["fault"])
    except ValueError as error:
        raise StoredValueError("is no fault", row["fault"], quarantine.c.fault) from error
    known = {name: value for name, value in row.items() if name != "reason"}
    return Quarantine(
        row["reason"], **{**known, "fault": fault, "rule": ReleaseRule(row["rule"])}
    )  # the schema checks the rule


class RolloutTable(HostTable):
    """Rolling upgrades of runtime bundles."""

    def all(self) -> dict[tuple[str, str], dict[str, Any]]:
        """By ABI and platform: the fields of farm.bundle.rollout_rules.Rollout, as JSON."""
        rows = (dict(row) for row in self._database.rows(self._select(rollout)))
        return {(row.pop("abi"), row.pop("platform")): row for row in rows}

    async def save(self, abi: str, platform: str, fields: Mapping[str, Any]) -> None:
        """Insert or replace one."""
        await self._database.put(rollout, {"host": self.host, "abi": abi, "platform": platform, **fields})


class BatteryTable(HostTable):
    """Days of each phone's battery, by serial."""

    def days(self, serial: str) -> tuple[BatteryDay, ...]:
        """A phone's stored days, the oldest first."""
        wanted = select(*_DAY).where(self._of(battery_day, serial)).order_by(battery_day.c.day)
        return tuple(BatteryDay(**row) for row in self._database.rows(wanted))

    async def save(self, serial: str, day: BatteryDay) -> None:
        """Insert or replace one day; days beyond `KEPT_DAYS` go."""

        def write(connection: Connection) -> None:
            put(connection, battery_day, {**self._values(day), "serial": serial})
            own = self._of(battery_day, serial)
            oldest = select(battery_day.c.day).where(own).order_by(battery_day.c.day.desc()).offset(KEPT_DAYS).limit(1)
            if (beyond := connection.execute(oldest).scalar()) is not None:
                connection.execute(delete(battery_day).where(own, battery_day.c.day <= beyond))

        await self._database.write(write)

    async def change_serial(self, serial: str, to: str) -> None:
        """Follow a phone to another serial; its days replace those of the other serial."""

        def move(connection: Connection) -> None:
            own = self._of(battery_day, serial)
            days = select(battery_day.c.day).where(own)
            connection.execute(delete(battery_day).where(self._of(battery_day, to), battery_day.c.day.in_(days)))
            connection.execute(update(battery_day).where(own).values(serial=to))

        await self._database.write(move)
