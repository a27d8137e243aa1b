"""The known devices: records, names, labels, and keys set by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

from farm.common.errors import FarmError, UserError
from farm.common.selector import Selector, checked_value, normalise, unique
from farm.devices.identity.naming_rules import (
    DERIVED_LABELS,
    AdoptRule,
    adopting_rule,
    aliases_of,
    device_name,
    labels_of,
)
from farm.model.health import Health
from farm.model.identity import DeviceIdentity
from farm.store.database import BackgroundWrites, run_to_completion
from farm.store.devices import DeviceRecord

if TYPE_CHECKING:
    from farm.devices.fleet import Fleet
    from farm.store.devices import AliasTable, DeviceTable

_LEARNED = ("hardware_serial", "identity", "health", "health_at")  # what farm finds out; the rest is ordered
_OPTION_HINTS = {"name": "farm device set NAME --name NEW", "pool": "farm device set NAME --pool POOL"}
Called = tuple[str, Mapping[str, str], tuple[str, ...]]  # pool, labels, aliases


class DeviceRegistry:
    """Records by serial. Believed at once in memory; `save` returns when the store has it too."""

    def __init__(self, table: DeviceTable, rules: Sequence[AdoptRule]) -> None:
        self._table = table
        self._host = table.host
        self.rules = tuple(rules)  # the first that matches adopts
        self._aliases: dict[str, Selector] = {}
        # Read before the first order: an order about a device must build on what is remembered of it.
        self._records = {record.serial: record for record in table.all()}
        self._called: dict[str, tuple[object, Called]] = {}  # by serial: what the names follow from, and these
        self._writes = BackgroundWrites()
        self.close = self._writes.close

    def records(self) -> tuple[DeviceRecord, ...]:
        """Every remembered device."""
        return tuple(self._records.values())

    # -- records --

    def get(self, serial: str) -> DeviceRecord | None:
        """The record of a device, if it has one."""
        return self._records.get(serial)

    def of_hardware(self, hardware_serial: str) -> tuple[DeviceRecord, ...]:
        """Records of one phone under whatever serials adb knows it by."""
        return tuple(record for record in self._records.values() if record.hardware_serial == hardware_serial)

    async def save(self, record: DeviceRecord, believed: Callable[[], None] = lambda: None) -> None:
        """Believe a record at once, so that a change made meanwhile builds on it, and store it.

        `believed` is called at each change of what is believed.

        Raises:
            FarmError: the store refused; the old record holds again.
        """
        before = self._records.get(record.serial)
        self._records[record.serial] = record
        believed()
        try:
            await self._table.save(record)
        except Exception:
            self._take_back(record, before)
            believed()
            raise

    def save_soon(self, record: DeviceRecord, *, instead_of: str = "") -> None:
        """Believe a record now and store it soon: after a crash in between, the same rule decides the same again."""
        if instead_of:
            self._records.pop(instead_of, None)
        self._records[record.serial] = record
        self._store_soon(record.serial, *([instead_of] if instead_of else ()))

    def trade_soon(self, one: DeviceRecord, other: DeviceRecord) -> None:
        """Two devices have each other's serial: believe it now and store it soon."""
        self._records[one.serial], self._records[other.serial] = (
            replace(other, serial=one.serial),
            replace(one, serial=other.serial),
        )
        self._store_soon(one.serial, other.serial)

    async def forget(self, serial: str) -> None:
        """Remove a record: first from memory, or a write that begins meanwhile would store it again.

        Raises:
            FarmError: the store refused; the record holds again.
        """
        record = self._records.pop(serial, None)
        try:
            await self._table.forget(serial)
        except BaseException:
            if record is not None:
                self._records.setdefault(serial, record)
            raise
        self._called.pop(serial, None)

    def identified(self, serial: str, identity: DeviceIdentity, taken: Collection[str]) -> DeviceRecord | None:
        """The record of an identified device that was adopted before, or is by a rule now; else None."""
        known = self._records.get(serial)
        adopted = known if known is not None and known.adopted else self.adopted_by_rule(serial, identity, taken)
        if (found := adopted or known) is None:
            return None
        record = of_identity(found, identity)
        if record != known:
            self.save_soon(record)
        return record if adopted else None

    def remember_health(self, serial: str, health: Health | None, at: datetime | None, every_s: float = 0.0) -> None:
        """Keep a device's latest probe with its time, unless one within `every_s` before it is kept."""
        record = self._records.get(serial)
        if record is None or health is None or at is None:
            return
        kept = record.health_at
        if kept is None or abs((at - kept).total_seconds()) > every_s:
            self.save_soon(replace(record, health=health, health_at=at))

    def adopted_by_rule(self, serial: str, identity: DeviceIdentity, taken: Collection[str]) -> DeviceRecord | None:
        """The record an adoption rule gives a device that is not adopted; None: leave it alone."""
        rule = adopting_rule(self.rules, identity, serial, self._host)
        if rule is None:
            return None
        record = self._records.get(serial) or DeviceRecord(serial, "")
        named_by_farm = record.name in ("", normalise(serial))
        return replace(
            record,
            name=device_name(identity, serial, taken, rule.name, self._host) if named_by_farm else record.name,
            hardware_serial=identity.hardware_serial,
            pool=record.pool or normalise(rule.pool),
            adopted=True,
        )

    def _take_back(self, record: DeviceRecord, before: DeviceRecord | None) -> None:
        """Undo a record that was not kept. Facts that an identification added meanwhile stay."""
        now = self._records.get(record.serial)
        if now is None:
            return  # it moved to another serial meanwhile, and is being kept there
        if before is None:
            del self._records[record.serial]
        else:
            learned = {name: getattr(now, name) for name in _LEARNED}
            self._records[record.serial] = replace(before, **learned)

    def _store_soon(self, *serials: str) -> None:
        """Store the latest records of these devices at the time of writing: one as it is now may be old by then."""

        async def store() -> None:
            records = [record for serial in serials if (record := self._records.get(serial)) is not None]
            await self._table.replace(serials, records)

        self._writes.replace(" and ".join(serials), store)

    # -- names --

    def called(
        self, serial: str, name: str, identity: DeviceIdentity | None, bundle: str = "", *, adopted: bool
    ) -> Called:
        """Pool, labels and aliases of a device. An unadopted device answers to no key: it serves no one."""
        record = self._records.get(serial)
        pool, by_hand = (record.pool, record.labels) if record else ("", {})
        facts = (name, pool, by_hand, identity, bundle, adopted, self._aliases)
        known = self._called.get(serial)
        if known is not None and known[0] == facts:  # asked with every probe
            return known[1]
        labels = {**by_hand, **labels_of(identity, name, pool, serial, bundle, self._host)}
        aliases: tuple[str, ...] = ()
        if adopted:
            own = aliases_of(identity, name, labels)
            configured = (alias for alias, selector in self._aliases.items() if selector.matches(labels, own))
            aliases = aliases_of(identity, name, labels, configured)
        self._called[serial] = facts, (pool, labels, aliases)
        return pool, labels, aliases

    def name_for(self, serial: str, identity: DeviceIdentity | None, taken: Collection[str]) -> str:
        """The remembered name, or a new one."""
        record = self._records.get(serial)
        if record is not None and (identity is None or record.name != normalise(serial)):
            return record.name
        if identity is None:
            return unique(normalise(serial) or "phone", taken)
        return device_name(identity, serial, {*taken, *self._aliases}, host=self._host)

    def checked_name(self, wanted: str, taken: Collection[str]) -> str:
        """A name from an order, checked.

        Raises:
            UserError: it is no name, or taken.
        """
        name = normalise(wanted)
        used = {*taken, *self._aliases}
        if name != wanted.strip().lower() or not any(character.isalnum() for character in name):
            instead = f": {name} can be" if any(character.isalnum() for character in name) else ""
            raise UserError(f"{wanted!r} cannot be a name", hint=f"use letters, digits and . _ -{instead}")
        if name in used:
            raise UserError(f"{name} is taken by another device or alias", hint=f"{unique(name, used)} is free")
        return name

    def edited(
        self,
        record: DeviceRecord,
        taken: Collection[str],
        rename: str | None = None,
        pool: str | None = None,
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> DeviceRecord:
        """A record with the changes of an order; None leaves a field as it is.

        Raises:
            UserError: the name is none, or taken; the pool or a label cannot be.
        """
        name = record.name if rename is None else self.checked_name(rename, taken)
        wanted = record.pool if pool is None else checked_pool(pool)
        return with_labels(replace(record, name=name, pool=wanted), labels)

    def set_aliases(self, aliases: Mapping[str, Selector]) -> None:
        """Replace the keys set by hand."""
        self._aliases = dict(aliases)


def of_identity(record: DeviceRecord, identity: DeviceIdentity | None) -> DeviceRecord:
    """The record with the facts of an identification; unchanged without one."""
    if identity is None:
        return record
    return replace(record, hardware_serial=identity.hardware_serial, identity=identity)


def checked_pool(wanted: str) -> str:
    """A pool from an order, normalised; empty is no pool.

    Raises:
        UserError: it cannot be a pool.
    """
    return checked_value(wanted, "a pool") if wanted else ""


def with_labels(record: DeviceRecord, labels: Mapping[str, str]) -> DeviceRecord:
    """The record with these hand-set labels too; an empty value removes one.

    Raises:
        UserError: farm finds that label out by itself, or its key or value cannot be one.
    """
    merged = dict(record.labels)
    for raw_key, raw_value in labels.items():
        key = checked_value(raw_key, "the key of a label")
        value = checked_value(raw_value, f"the value of label {key}") if raw_value else ""
        if value and key in DERIVED_LABELS:
            hint = _OPTION_HINTS.get(key, "choose another key; `farm device show NAME` lists what farm found out")
            raise UserError(f"farm sets the label {key} itself", hint=hint)
        merged[key] = value
    return replace(record, labels={key: value for key, value in merged.items() if value})


class Aliases:
    """Keys set by hand. One of the store wins over one of the same name in the configuration."""

    def __init__(self, fleet: Fleet, table: AliasTable, configured: Mapping[str, str]) -> None:
        """Give the settings to the fleet.

        Raises:
            UserError: a configured selector does not follow the grammar.
        """
        self._fleet = fleet
        self._table = table
        self._stored = {name: Selector.parse(text) for name, text in table.all().items()}
        self._changing = asyncio.Lock()  # one at a time, so that no `reread` takes back a key that is being written
        self.use(configured)

    def use(self, configured: Mapping[str, str]) -> None:
        """Take the configuration's keys as they are now.

        Raises:
            UserError: a selector does not follow the grammar; nothing has changed.
        """
        self._configured = {normalise(name): Selector.parse(text) for name, text in configured.items()}
        self._fleet.set_aliases(self.selectors())

    def selectors(self) -> dict[str, Selector]:
        """Every key set by hand, with the phones it means."""
        return self._configured | self._stored

    @run_to_completion
    async def set(self, name: str, selector: str) -> str:
        """Set a key; returns it normalised.

        Raises:
            UserError: the name cannot be a key, a device has that key by itself, or the selector does not follow the
                grammar.
        """
        alias, parsed = checked_value(name, "a key"), Selector.parse(selector)
        async with self._changing:
            await self._set(alias, parsed)
        return alias

    async def _set(self, alias: str, parsed: Selector) -> None:
        own = next((view for view in self._fleet.views() if alias in (view.name, *view.aliases)), None)
        if own is not None and alias not in self.selectors():
            raise UserError(f"{alias} is a key that {own.name} has by itself", hint="choose another key")
        before = self._stored.get(alias)
        self._put(alias, parsed)  # at once: a device must not take the name while this is written
        try:
            await self._table.save(alias, str(parsed))
        except FarmError:
            self._put(alias, before)
            raise

    async def reread(self) -> None:
        """Take up the keys that other hosts of the lab have set or removed.

        Raises:
            HostError: the database is away.
        """
        async with self._changing:
            stored = await self._table.in_thread(self._table.all)
            if stored != {name: str(selector) for name, selector in self._stored.items()}:
                self._stored = {name: Selector.parse(text) for name, text in stored.items()}
                self._fleet.set_aliases(self.selectors())

    @run_to_completion
    async def remove(self, name: str) -> str:
        """Remove a key; returns it normalised.

        Raises:
            UserError: it was not set with `farm alias set`.
        """
        alias = normalise(name)
        async with self._changing:
            if not await self._table.forget(alias):
                where = "it stands in the configuration file" if alias in self._configured else "see: farm alias list"
                raise UserError(f"the key {name!r} was not set with `farm alias set`", hint=where)
            self._put(alias, None)
        return alias

    def _put(self, alias: str, selector: Selector | None) -> None:
        if selector is None:
            self._stored.pop(alias, None)
        else:
            self._stored[alias] = selector
        self._fleet.set_aliases(self.selectors())
