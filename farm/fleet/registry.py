"""What the farm remembers of devices and how it calls them: records, names, labels, aliases."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

from farm.core.adoption import AdoptionRule, decide_adoption, device_name
from farm.core.errors import FarmError, UserError
from farm.core.identity import DeviceIdentity
from farm.core.labels import DERIVED_LABELS, aliases_of, labels_of, normalise, unique
from farm.core.selector import Selector
from farm.store.records import DeviceRecord

_LABEL_HINT = "KEY=VALUE of letters, digits and . _ -; an empty value removes the label"
_OPTION_HINTS = {"name": "farm device set NAME --name NEW", "pool": "farm device set NAME --pool POOL"}

log = logging.getLogger(__name__)


class DeviceBook(Protocol):
    """What the registry needs of farm.store.devices.DeviceTable."""

    def all(self) -> tuple[DeviceRecord, ...]:
        """Every remembered device."""

    async def save(self, record: DeviceRecord) -> None:
        """Insert or replace one."""

    async def save_together(self, records: Sequence[DeviceRecord]) -> None:
        """Insert or replace several that may have exchanged their names."""

    async def forget(self, serial: str) -> None:
        """Remove one."""


@dataclass(frozen=True, slots=True)
class Called:
    """How a device is called."""

    pool: str
    labels: Mapping[str, str]
    aliases: tuple[str, ...]


class Registry:
    """Records by serial. Believed at once in memory; `save` returns when the store has it too."""

    def __init__(self, book: DeviceBook, rules: Sequence[AdoptionRule]) -> None:
        self._book = book
        self.rules = tuple(rules)  # the first that matches adopts
        self._aliases: dict[str, Selector] = {}
        # Read before anybody can order anything: an order about a device must build on what is remembered of it.
        self._records = {record.serial: record for record in book.all()}
        self._keeping: set[asyncio.Task[None]] = set()

    def records(self) -> tuple[DeviceRecord, ...]:
        """Every remembered device."""
        return tuple(self._records.values())

    async def close(self) -> None:
        """Wait until everything is kept."""
        await asyncio.gather(*self._keeping, return_exceptions=True)

    # -- records --

    def get(self, serial: str) -> DeviceRecord | None:
        """The record of a device, if it has one."""
        return self._records.get(serial)

    def of_hardware(self, hardware_serial: str) -> tuple[DeviceRecord, ...]:
        """Records of one phone under whatever serials adb knows it by."""
        return tuple(record for record in self._records.values() if record.hardware_serial == hardware_serial)

    async def save(self, record: DeviceRecord, believed: Callable[[], None] = lambda: None) -> None:
        """Believe a record at once, so that whoever changes it meanwhile builds on it, and keep it.

        `believed` is called at each change of what is believed.

        Raises:
            FarmError: the store refused; the old record holds again.
        """
        before = self._records.get(record.serial)
        self._records[record.serial] = record
        believed()
        try:
            await self._book.save(record)
        except Exception:
            self._take_back(record, before)
            believed()
            raise

    def save_soon(self, record: DeviceRecord, *, instead_of: str = "") -> None:
        """Believe a record now and keep it soon: after a crash in between, the same rule decides the same again."""
        if instead_of:
            self._records.pop(instead_of, None)
        self._records[record.serial] = record
        self._keep_soon(self._keep(record.serial, instead_of), record.name)

    def trade_soon(self, one: DeviceRecord, other: DeviceRecord) -> None:
        """Two devices have each other's serial: believe it now and keep it soon."""
        self._records[one.serial], self._records[other.serial] = (
            replace(other, serial=one.serial),
            replace(one, serial=other.serial),
        )
        self._keep_soon(self._keep_traded((one.serial, other.serial)), f"{one.name} and {other.name}")

    async def forget(self, serial: str) -> None:
        """Remove a record."""
        await self._book.forget(serial)
        self._records.pop(serial, None)

    def identified(self, serial: str, identity: DeviceIdentity, taken: Collection[str]) -> DeviceRecord | None:
        """The record of an identified device that is adopted, by somebody before or by a rule now; else None."""
        known = self._records.get(serial)
        if known is None or not known.adopted:
            record = self.adopted_by_rule(serial, identity, taken)
        else:
            record = replace(known, hardware_serial=identity.hardware_serial)
        if record is not None and record != known:
            self.save_soon(record)
        return record

    def adopted_by_rule(self, serial: str, identity: DeviceIdentity, taken: Collection[str]) -> DeviceRecord | None:
        """The record an adoption rule gives a device that is not adopted; None: leave it alone."""
        adoption = decide_adoption(self.rules, identity, serial, taken)
        if adoption is None:
            return None
        record = self._records.get(serial) or DeviceRecord(serial, "")
        named_by_farm = record.name in ("", normalise(serial))
        return replace(
            record,
            name=adoption.name if named_by_farm else record.name,
            hardware_serial=identity.hardware_serial,
            pool=record.pool or adoption.pool,
            adopted=True,
        )

    def _take_back(self, record: DeviceRecord, before: DeviceRecord | None) -> None:
        """Undo a record that was not kept. What an identification added to it meanwhile stays."""
        now = self._records.get(record.serial)
        if now is None:
            return  # it moved to another serial meanwhile, and is being kept there
        if before is None:
            del self._records[record.serial]
        else:
            self._records[record.serial] = replace(before, hardware_serial=now.hardware_serial)

    def _keep_soon(self, keeping: Coroutine[object, object, None], names: str) -> None:
        task = asyncio.create_task(keeping, name=f"keep {names}")
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    async def _keep_traded(self, serials: Sequence[str]) -> None:
        records = [record for serial in serials if (record := self._records.get(serial)) is not None]
        try:
            await self._book.save_together(records)
        except FarmError:
            log.exception("%s could not be kept in the store", " and ".join(serials))

    async def _keep(self, serial: str, instead_of: str) -> None:
        """Write what is believed by now: a record as it was when this was asked for may be an old one."""
        try:
            if instead_of and instead_of not in self._records:
                await self._book.forget(instead_of)
            if (record := self._records.get(serial)) is not None:
                await self._book.save(record)
        except FarmError:
            log.exception("%s could not be kept in the store", serial)

    # -- names --

    def called(
        self, serial: str, name: str, identity: DeviceIdentity | None, bundle: str = "", *, adopted: bool
    ) -> Called:
        """Pool, labels and aliases of a device. One that is not adopted answers to no key: it serves nobody."""
        record = self._records.get(serial)
        pool = record.pool if record else ""
        labels = labels_of(identity, name, pool, serial, bundle) | dict(record.labels if record else {})
        if not adopted:
            return Called(pool, labels, ())
        own = aliases_of(identity, name, labels)
        configured = (alias for alias, selector in self._aliases.items() if selector.matches(labels, own))
        return Called(pool, labels, aliases_of(identity, name, labels, configured))

    def name_for(self, serial: str, identity: DeviceIdentity | None, taken: Collection[str]) -> str:
        """The remembered name, or a new one."""
        record = self._records.get(serial)
        if record is not None and (identity is None or record.name != normalise(serial)):
            return record.name
        if identity is None:
            return unique(normalise(serial) or "phone", taken)
        return device_name(identity, serial, {*taken, *self._aliases})

    def checked_name(self, wanted: str, taken: Collection[str]) -> str:
        """A name somebody asked for.

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
        """A record as somebody wants it; None leaves a thing as it is.

        Raises:
            UserError: the name is none, or taken; the pool or a label cannot be.
        """
        name = record.name if rename is None else self.checked_name(rename, taken)
        wanted = record.pool if pool is None else checked_pool(pool)
        return with_labels(replace(record, name=name, pool=wanted), labels)

    def set_aliases(self, aliases: Mapping[str, Selector]) -> None:
        """Replace the keys set by hand."""
        self._aliases = dict(aliases)


def checked_pool(wanted: str) -> str:
    """A pool somebody asked for, normalised; empty is no pool.

    Raises:
        UserError: nothing of it survives.
    """
    pool = normalise(wanted)
    if wanted and not pool:
        raise UserError(f"{wanted!r} cannot be a pool", hint="use letters, digits and . _ -")
    return pool


def with_labels(record: DeviceRecord, labels: Mapping[str, str]) -> DeviceRecord:
    """The record with these hand-set labels too; an empty value removes one.

    Raises:
        UserError: farm finds that label out by itself, or nothing of its key or value survives normalisation.
    """
    merged = dict(record.labels)
    for raw_key, raw_value in labels.items():
        key, value = normalise(raw_key), normalise(raw_value)
        if not key or (raw_value and not value):
            wrong = raw_key if not key else raw_value
            raise UserError(f"label {raw_key}={raw_value}: nothing of {wrong!r} is left", hint=_LABEL_HINT)
        if value and key in DERIVED_LABELS:
            hint = _OPTION_HINTS.get(key, "choose another key; `farm device show NAME` lists what farm found out")
            raise UserError(f"farm sets the label {key} itself", hint=hint)
        merged[key] = value
    return replace(record, labels={key: value for key, value in merged.items() if value})
