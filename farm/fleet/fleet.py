"""All devices: follows adb's list with one agent per device, names them, adopts them, shows them.

Everything here runs on the event loop's thread. What a single device does is its agent's business; what the farm
remembers of it is its record's (farm.store).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from farm.adb.client import AdbClient
from farm.adb.devices import AdbDevice
from farm.adb.errors import AdbError
from farm.adb.push import PushProgress
from farm.core import lifecycle_messages as m
from farm.core.adoption import AdoptionRule, decide_adoption, device_name
from farm.core.device import DeviceView, Life, Service
from farm.core.errors import FarmError, NoPhoneError, PhoneError, UserError
from farm.core.events import EventLog
from farm.core.identity import DeviceIdentity
from farm.core.labels import aliases_of, labels_of, normalise, unique
from farm.core.lifecycle import DeviceState as LifeState
from farm.core.selector import Selector, nearest
from farm.fleet.agent import Agent, BundleSource, Means
from farm.fleet.checker import Checker
from farm.fleet.links import listed
from farm.fleet.vitals import read_vitals
from farm.store.store import DeviceRecord

VITALS_EVERY_S = 30.0  # per device, spread over that time: 100 phones are about three short shells a second
DISCONNECT_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


class Watcher(Protocol):
    """What the fleet needs of farm.adb.watch.DeviceWatcher."""

    async def run(self) -> None:
        """Watch until cancelled."""

    def snapshots(self) -> AsyncIterator[tuple[AdbDevice, ...]]:
        """The list now, and again whenever it changed."""

    def add_network(self, address: str) -> str:
        """Keep a network phone connected; returns its serial."""

    def remove_network(self, address: str) -> None:
        """Stop doing so."""


class DeviceBook(Protocol):
    """What the fleet needs of farm.store.store.Store."""

    def devices(self) -> tuple[DeviceRecord, ...]:
        """Every remembered device."""

    async def save_device(self, record: DeviceRecord) -> None:
        """Insert or replace one."""

    async def forget_device(self, serial: str) -> None:
        """Remove one."""


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """What operators configured about devices."""

    rules: Sequence[AdoptionRule] = ()
    aliases: Mapping[str, Selector] = {}
    vitals_every_s: float = VITALS_EVERY_S


class Fleet:
    """Every device adb lists or the farm remembers."""

    def __init__(
        self,
        client: AdbClient,
        watcher: Watcher,
        bundles: BundleSource,
        checker: Checker,
        book: DeviceBook,
        events: EventLog,
        config: FleetConfig,
    ) -> None:
        self._client = client
        self._watcher = watcher
        self._book = book
        self._events = events
        self._config = config
        self._aliases = dict(config.aliases)
        self._means = Means(client, bundles, checker, self)
        self._agents: dict[str, Agent] = {}  # by serial
        self._records: dict[str, DeviceRecord] = {}  # by serial
        self._views: dict[str, DeviceView] = {}  # by serial
        self._watching: list[Callable[[DeviceView], None]] = []
        self._saving: set[asyncio.Task[None]] = set()

    # -- running --

    async def run(self) -> None:
        """Follow adb until cancelled. Servers on phones are left running: the next daemon replaces them."""
        for record in self._book.devices():
            self._remember(record)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watcher.run(), name="adb watcher")
                group.create_task(self._follow_list(), name="fleet list")
                group.create_task(self._read_vitals(), name="fleet vitals")
        finally:
            await asyncio.gather(*(agent.close() for agent in self._agents.values()), return_exceptions=True)
            await asyncio.gather(*self._saving, return_exceptions=True)

    async def _follow_list(self) -> None:
        async for snapshot in self._watcher.snapshots():
            self.see(snapshot)

    def see(self, snapshot: Sequence[AdbDevice]) -> None:
        """Take adb's list as it is now."""
        now = {device.serial: device for device in snapshot}
        for serial, agent in tuple(self._agents.items()):
            if serial not in now:
                self._unlisted(agent)
        for serial, device in now.items():
            known = self._agents.get(serial)
            agent = known or self._new_agent(serial)
            replaced = agent.device is not None and agent.device.transport_id != device.transport_id
            if replaced and known is not None:
                agent.tell(m.Unlisted())  # gone and back between two lists: its streams are dead
            agent.device = device
            agent.tell(listed(device))

    async def _read_vitals(self) -> None:
        """One device after the other, evenly spread: never two short shells at once for this."""
        while True:
            serials = tuple(self._agents)
            pause_s = self._config.vitals_every_s / max(1, len(serials))
            for serial in serials or ("",):
                await asyncio.sleep(pause_s)
                agent = self._agents.get(serial)
                if agent is not None and agent.state.life in {Life.READY, Life.QUARANTINED}:
                    await self._read_one(agent)

    async def _read_one(self, agent: Agent) -> None:
        try:
            vitals = await read_vitals(self._client, agent.serial)
        except FarmError as error:
            log.debug("%s: no vitals: %s", agent.name, error)  # the follower or the list will tell what is wrong
            return
        agent.temperature_c = vitals.temperature_c
        self.changed(agent)

    # -- looking --

    def views(self) -> tuple[DeviceView, ...]:
        """Every device, by name."""
        return tuple(sorted(self._views.values(), key=lambda view: view.name))

    def view(self, name: str) -> DeviceView:
        """One device by name or serial.

        Raises:
            NoPhoneError: there is none; the nearest names are in the hint.
        """
        return self._views[self._find(name).serial]

    def story(self, name: str) -> tuple[str, ...]:
        """The last steps of one device's life, for people who wonder."""
        return self._find(name).story

    def record(self, name: str) -> DeviceRecord | None:
        """What the farm remembers of a device."""
        return self._records.get(self._find(name).serial)

    def bundles_in_use(self) -> dict[str, tuple[str, ...]]:
        """Bundle hash -> names of the devices that have it."""
        found: dict[str, tuple[str, ...]] = {}
        for view in self.views():
            if view.bundle:
                found[view.bundle] = (*found.get(view.bundle, ()), view.name)
        return found

    def subscribe(self, callback: Callable[[DeviceView], None]) -> Callable[[], None]:
        """Call back with each new view, at once and in order; returns the function that ends it.

        A device that is no longer known is shown a last time: not adopted and gone.
        """
        self._watching.append(callback)
        return lambda: self._watching.remove(callback)

    # -- using --

    async def dial(self, name: str, timeout_s: float) -> tuple[socket.socket, str]:
        """A non-blocking socket to the device's RPC server, and that server's key.

        Raises:
            NoPhoneError: there is no such device.
            ServerGoneError: it has no server now.
            AdbError: the phone did not connect.
        """
        return await self._find(name).dial(timeout_s)

    def report_broken_session(self, name: str, reason: str) -> None:
        """A session left the device in doubt: it leaves READY at once, is cleaned and checked again."""
        with suppress(NoPhoneError):  # forgotten meanwhile: nothing to clean
            self._find(name).tell(m.SessionBroke(reason))

    def bundles_changed(self) -> None:
        """The library changed: devices that had no bundle try again; the others change at their next start."""
        for agent in tuple(self._agents.values()):
            agent.tell(m.BundlesChanged())

    # -- deciding about devices --

    async def adopt(self, name: str, *, pool: str = "", rename: str = "") -> DeviceView:
        """Take a device into the farm; its provisioning begins.

        Raises:
            NoPhoneError, UserError: there is none, or the new name is taken or no name.
        """
        agent = self._find(name)
        chosen = self._free_name(rename, agent) if rename else self._chosen_name(agent)
        record = self._record_of(agent)
        await self._save(agent, replace(record, name=chosen, pool=normalise(pool) or record.pool, adopted=True))
        agent.tell(m.Adopted())
        return self._views[agent.serial]

    async def change(
        self, name: str, *, rename: str | None = None, pool: str | None = None, labels: Mapping[str, str] | None = None
    ) -> DeviceView:
        """Change a device's name, pool or hand-set labels (an empty value removes a label).

        Raises:
            NoPhoneError, UserError: there is none, or the new name is taken or no name.
        """
        agent = self._find(name)
        record = self._record_of(agent)
        if rename is not None:
            record = replace(record, name=self._free_name(rename, agent))
        if pool is not None:
            record = replace(record, pool=normalise(pool))
        if labels:
            merged = {**record.labels, **{normalise(key): normalise(value) for key, value in labels.items()}}
            record = replace(record, labels={key: value for key, value in merged.items() if key and value})
        await self._save(agent, record)
        self.changed(agent)
        return self._views[agent.serial]

    async def set_service(self, name: str, service: Service) -> DeviceView:
        """Drain, maintain or put back into service; the last also releases a quarantined device."""
        agent = self._find(name)
        await self._save(agent, replace(self._record_of(agent), service=service.value))
        agent.tell(m.ServiceChanged(service))
        if service is Service.IN:
            agent.tell(m.Released())
        return self._views[agent.serial]

    async def add_network(self, address: str) -> str:
        """Keep a network phone connected for ever; returns the serial it will be listed under."""
        serial = self._watcher.add_network(address)
        record = self._records.get(serial) or DeviceRecord(serial, self._unique_name(normalise(serial), serial))
        await self._book.save_device(replace(record, address=serial))
        self._remember(replace(record, address=serial))
        return serial

    async def reboot(self, name: str) -> None:
        """Reboot a device; it comes back by itself.

        Raises:
            AdbError: the phone did not take the request.
        """
        await self._client.reboot(self._find(name).serial)

    async def forget(self, name: str, *, clean: bool = False) -> None:
        """Give a device back: its server ends, with `clean` everything of ours goes, and its record too.

        Raises:
            PhoneError: it cannot be cleaned now (not connected, or the phone refused); it is still remembered.
        """
        agent = self._find(name)
        record = self._records.get(agent.serial)
        reachable = agent.state.identified and agent.state.life not in {Life.GONE, Life.OFFLINE, Life.UNAUTHORIZED}
        if clean and not reachable and agent.state.adopted:
            raise PhoneError(
                f"{agent.name} cannot be cleaned: it is {agent.state.life}",
                hint="connect it, or forget it without --clean",
            )
        agent.tell(m.Unadopted(clean))
        agent.server = None
        try:
            await agent.farewell()
        except TimeoutError as error:
            raise PhoneError(f"{agent.name} did not answer while it was cleaned", hint="try again") from error
        if record is not None:
            await self._book.forget_device(agent.serial)
            self._records.pop(agent.serial, None)
            if record.address:
                self._watcher.remove_network(record.address)
                await self._disconnect(record.address)
        if agent.state.life is Life.GONE:
            await self._drop(agent)
        else:
            self.changed(agent)

    async def uninstall(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Clean and forget every adopted device: the names that are clean, and why the others are not."""
        names = [view.name for view in self.views() if view.adopted]
        outcomes = await asyncio.gather(*(self.forget(name, clean=True) for name in names), return_exceptions=True)
        failed: dict[str, str] = {}
        for name, outcome in zip(names, outcomes, strict=True):
            if isinstance(outcome, FarmError):
                failed[name] = outcome.message
            elif outcome is not None:
                raise outcome
        return tuple(name for name in names if name not in failed), failed

    def set_aliases(self, aliases: Mapping[str, Selector]) -> None:
        """Replace the configured aliases."""
        self._aliases = dict(aliases)
        for agent in tuple(self._agents.values()):
            self.changed(agent)

    # -- what agents tell (farm.fleet.agent.Owner) --

    def identified(self, agent: Agent, identity: DeviceIdentity) -> bool:
        """Put a name to an identity; returns whether the device is adopted."""
        agent.identity = identity
        self._move_in(agent, identity)
        record = self._records.get(agent.serial)
        if record is not None and record.adopted:
            if record.hardware_serial != identity.hardware_serial:
                self._save_soon(replace(record, hardware_serial=identity.hardware_serial))
            return True
        adoption = decide_adoption(self._config.rules, identity, agent.serial, self._taken(agent))
        if adoption is None:
            agent.name = record.name if record else device_name(identity, agent.serial, self._taken(agent))
            return False
        base = record or DeviceRecord(agent.serial, "")
        self._save_soon(
            replace(
                base,
                name=adoption.name if base.name in ("", normalise(agent.serial)) else base.name,
                hardware_serial=identity.hardware_serial,
                pool=base.pool or adoption.pool,
                adopted=True,
            )
        )
        return True

    def changed(self, agent: Agent) -> None:
        """Publish the agent's view if it differs from the last one."""
        if self._agents.get(agent.serial) is not agent:
            return
        before = self._views.get(agent.serial)
        view = self._view_of(agent)
        if view == before:
            return
        self._views[agent.serial] = view
        if before is None or before.life is not view.life:
            self._events.publish(
                f"device.{view.life}", view.name, serial=view.serial, reason=view.reason, hint=agent.state.hint
            )
        self._show(view)

    def pushing(self, agent: Agent, progress: PushProgress) -> None:
        """Say how far a push is."""
        self._events.publish(
            "device.pushing", agent.name, sent_bytes=progress.sent_bytes, total_bytes=progress.total_bytes
        )

    # -- below --

    def _new_agent(self, serial: str) -> Agent:
        record = self._records.get(serial)
        state = LifeState(adopted=record.adopted, service=Service(record.service)) if record else LifeState()
        name = record.name if record else self._unique_name(normalise(serial) or "phone", serial)
        agent = self._agents[serial] = Agent(serial, name, self._means, state)
        return agent

    def _remember(self, record: DeviceRecord) -> None:
        self._records[record.serial] = record
        if record.address:
            self._watcher.add_network(record.address)
        agent = self._agents.get(record.serial) or self._new_agent(record.serial)
        agent.name = record.name
        self.changed(agent)

    def _unlisted(self, agent: Agent) -> None:
        agent.device = None
        agent.tell(m.Unlisted())
        if agent.serial not in self._records:
            task = asyncio.ensure_future(self._drop(agent))
            self._saving.add(task)
            task.add_done_callback(self._saving.discard)

    async def _drop(self, agent: Agent) -> None:
        """Nobody remembers it and adb does not list it: show it gone and let it go."""
        if self._agents.get(agent.serial) is agent:
            del self._agents[agent.serial]
            last = self._views.pop(agent.serial, None)
            if last is not None:
                self._show(replace(last, life=Life.GONE, adopted=False, reason=agent.state.reason))
        await agent.close()

    def _move_in(self, agent: Agent, identity: DeviceIdentity) -> None:
        """A remembered phone came back under another serial (USB or network, another port): its record follows it.

        Only while adb does not list it under the old serial too: then it is one phone on two ways, and the new way
        stays a stranger.
        """
        if not identity.hardware_serial or agent.serial in self._records:
            return
        for old in tuple(self._records.values()):
            former = self._agents.get(old.serial)
            if old.hardware_serial != identity.hardware_serial or old.address:
                continue
            if former is None or former.device is not None:
                continue
            del self._records[old.serial], self._agents[old.serial]
            self._views.pop(old.serial, None)
            agent.server = former.server
            agent.tell(m.ServiceChanged(Service(old.service)))
            self._save_soon(replace(old, serial=agent.serial), instead_of=old.serial)
            return

    def _view_of(self, agent: Agent) -> DeviceView:
        state, identity = agent.state, agent.identity
        record = self._records.get(agent.serial)
        pool = record.pool if record else ""
        labels = labels_of(identity, agent.name, pool, agent.serial) | dict(record.labels if record else {})
        own = aliases_of(identity, agent.name, labels)
        configured = [alias for alias, selector in self._aliases.items() if selector.matches(labels, own)]
        return DeviceView(
            name=agent.name,
            serial=agent.serial,
            life=state.life,
            service=state.service,
            reason=state.reason,
            adopted=state.adopted,
            pool=pool,
            identity=identity,
            labels=labels,
            aliases=aliases_of(identity, agent.name, labels, configured),
            temperature_c=agent.temperature_c,
            bundle=state.bundle,
            since=agent.since,
        )

    def _show(self, view: DeviceView) -> None:
        for callback in tuple(self._watching):
            callback(view)

    def _find(self, name: str) -> Agent:
        by_name = {agent.name: agent for agent in self._agents.values()}
        found = by_name.get(name) or self._agents.get(name) or by_name.get(normalise(name))
        if found is None:
            close = nearest(name, by_name)
            known = f"did you mean {close[0]}?" if close else "farm device list"
            raise NoPhoneError(f"there is no device {name!r}", hint=known)
        return found

    def _record_of(self, agent: Agent) -> DeviceRecord:
        hardware_serial = agent.identity.hardware_serial if agent.identity else ""
        return self._records.get(agent.serial) or DeviceRecord(agent.serial, agent.name, hardware_serial)

    def _taken(self, agent: Agent) -> set[str]:
        """Names others have; an alias of several devices is no name either."""
        others = [other for other in self._agents.values() if other is not agent]
        names = {other.name for other in others} | set(self._aliases)
        for other in others:
            if view := self._views.get(other.serial):
                names.update(view.aliases)
        return names

    def _chosen_name(self, agent: Agent) -> str:
        record = self._records.get(agent.serial)
        return record.name if record else device_name(agent.identity, agent.serial, self._taken(agent))

    def _free_name(self, wanted: str, agent: Agent) -> str:
        name = normalise(wanted)
        if not name:
            raise UserError(f"{wanted!r} cannot be a name", hint="use letters, digits and . _ -")
        if name in self._taken(agent):
            raise UserError(
                f"{name} is taken by another device or alias", hint=f"free is {unique(name, self._taken(agent))}"
            )
        return name

    def _unique_name(self, wanted: str, serial: str) -> str:
        return unique(wanted, {agent.name for agent in self._agents.values() if agent.serial != serial})

    async def _save(self, agent: Agent, record: DeviceRecord) -> None:
        await self._book.save_device(record)
        self._records[agent.serial] = record
        agent.name = record.name

    def _save_soon(self, record: DeviceRecord, *, instead_of: str = "") -> None:
        """Believe it now, keep it soon: losing this after a crash costs nothing, the rule decides the same again."""
        self._records[record.serial] = record
        agent = self._agents.get(record.serial)
        if agent is not None:
            agent.name = record.name

        async def keep() -> None:
            if instead_of:
                await self._book.forget_device(instead_of)
            try:
                await self._book.save_device(record)
            except FarmError as error:
                self._events.publish("device.not_kept", record.name, reason=error.message)

        task = asyncio.create_task(keep(), name=f"keep {record.name}")
        self._saving.add(task)
        task.add_done_callback(self._saving.discard)

    async def _disconnect(self, address: str) -> None:
        try:
            async with asyncio.timeout(DISCONNECT_TIMEOUT_S):
                await self._client.disconnect(address)
        except (AdbError, TimeoutError) as error:
            log.info("%s: adb did not disconnect it: %s", address, error)
