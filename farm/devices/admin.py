"""Orders about devices, carried out to their end: adopt, change, drain, forget, and another runtime bundle for a lease.

A bundle override: the life cycle provisions, starts and checks the bundle as always (`LifecycleState.bundle_override`);
a failure puts the phone's own bundle back. `BundleOverride` makes the request and waits for the result.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from farm.adb.errors import AdbError
from farm.bundle.model import Bundle
from farm.common.errors import Code, FarmError, NoSuchDeviceError, PhoneError, UserError
from farm.common.selector import did_you_mean, normalise
from farm.devices.agent import Agent
from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.state import LINK_DOWN
from farm.devices.registry import of_identity
from farm.model.device import DeviceView, Life, Service
from farm.store.database import run_to_completion
from farm.store.devices import DeviceRecord

if TYPE_CHECKING:
    from farm.devices.fleet import Fleet

DISCONNECT_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


class DeviceAdmin:
    """One per fleet; works on its agents. Each order is carried out to its end, those about a device one by one."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    @run_to_completion
    async def adopt(self, name: str, *, pool: str = "", rename: str = "") -> DeviceView:
        """Take a device into the farm; its provisioning begins.

        Raises:
            NoSuchDeviceError, UserError: there is none, it is the second link to a phone, or the new name is taken or
                no name.
        """
        async with self._order(name) as agent:
            if agent.other_link:
                raise UserError(f"{agent.name} is not adopted: {agent.other_link}", hint=agent.state.hint)
            record = replace(self._record_of(agent), name=agent.name, adopted=True)
            taken = self._fleet.device_views.other_keys(agent.serial)
            await self._keep(agent, self._fleet.registry.edited(record, taken, rename or None, pool or None))
            agent.on_event(m.PlainEvent.ADOPTED)
            return self._fleet.device_views.view(agent.serial)

    @run_to_completion
    async def change(
        self, name: str, *, rename: str | None = None, pool: str | None = None, labels: Mapping[str, str] | None = None
    ) -> DeviceView:
        """Change a device's name, pool or hand-set labels (an empty value removes a label).

        Raises:
            NoSuchDeviceError, UserError: there is none, the new name is taken or no name, or a label is not for people.
        """
        async with self._order(name) as agent:
            record, taken = self._record_of(agent), self._fleet.device_views.other_keys(agent.serial)
            await self._keep(agent, self._fleet.registry.edited(record, taken, rename, pool, labels or {}))
            return self._fleet.device_views.view(agent.serial)

    @run_to_completion
    async def set_service(self, name: str, service: Service, by: str = "") -> DeviceView:
        """Drain, maintain or put back into service; the last also releases a quarantined device.

        Args:
            name: the device.
            service: what it shall be in.
            by: on whose order; it is kept with the time, and the event names them.

        Raises:
            NoSuchDeviceError, UserError: there is none, or it is not adopted.
        """
        async with self._order(name) as agent:
            require_adopted(agent)
            before = self._record_of(agent)
            record = before
            if service.value != before.service:
                now = None if service is Service.IN else self._fleet.wall()
                record = replace(before, service=service.value, ordered_by=by if now else "", ordered_at=now)
            await self._keep(agent, record)
            agent.on_event(m.ServiceChanged(service))
            if record != before:
                self._fleet.device_views.publish_service(agent, service, Service(before.service), by)
            if service is Service.IN:
                self._fleet.findings.released(agent)
                self._fleet.rollouts.released(agent)
                agent.on_event(m.PlainEvent.RELEASED)
            return self._fleet.device_views.view(agent.serial)

    def out_of_service_by(self, name: str) -> str:
        """The user who took a device out of service, and when; "" when it is in service.

        Raises:
            NoSuchDeviceError: there is none.
        """
        record = self._fleet.registry.get(find_agent(self._fleet.agents, name).serial)
        if record is None or record.ordered_at is None:
            return ""
        return f"{record.ordered_by or 'another user'} at {record.ordered_at:%Y-%m-%d %H:%M:%S} UTC"

    @run_to_completion
    async def add_network(self, address: str) -> str:
        """Keep a network phone connected forever; returns the serial it will be listed under."""
        serial = self._fleet.watcher.add_network(address)
        if serial not in self._fleet.agents:
            self._fleet.add(serial)
        async with self._order(serial) as agent:
            await self._keep(agent, replace(self._record_of(agent), address=serial))
        return serial

    async def forget(self, name: str, *, clean: bool = False) -> None:
        """Give a device back: its server ends, with `clean` everything of ours goes, and its record too.

        Raises:
            PhoneError: it cannot be cleaned now (not connected, or the phone refused); it is still adopted.
        """
        async with self._order(name) as agent:
            await self._give_back(agent, clean=clean)

    async def forget_all(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Clean and forget every adopted device: the clean names, and the reason of each failure."""
        names = [view.name for view in self._fleet.device_views.views() if view.adopted]
        failed: dict[str, str] = {}

        async def forget(name: str) -> None:
            try:
                await self.forget(name, clean=True)
            except FarmError as error:
                failed[name] = error.message

        await asyncio.gather(*map(forget, names))
        return tuple(name for name in names if name not in failed), failed

    async def _give_back(self, agent: Agent, *, clean: bool) -> None:
        if clean:
            _require_reachable(agent)
        await self._fleet.batteries.allow(agent)
        agent.on_event(m.Unadopted(clean))
        agent.server = None
        try:
            await _wait_for_end(agent, clean=clean)
            await self._let_go(agent)
        finally:
            record = self._fleet.registry.get(agent.serial)
            if record is not None and record.adopted:  # it failed: the device must agree with its record
                agent.on_event(m.PlainEvent.ADOPTED)

    def _record_of(self, agent: Agent) -> DeviceRecord:
        record = self._fleet.registry.get(agent.serial) or DeviceRecord(agent.serial, agent.name)
        return of_identity(record, agent.identity)

    @asynccontextmanager
    async def _order(self, name: str) -> AsyncIterator[Agent]:
        """The device of an order, once the order before is done: its record does not change until it is stored."""
        agent = find_agent(self._fleet.agents, name)
        async with agent.orders:
            if self._fleet.agents.get(agent.serial) is not agent:
                raise NoSuchDeviceError(f"{agent.name} was forgotten meanwhile", hint="see `farm device list`")
            yield agent

    async def _keep(self, agent: Agent, record: DeviceRecord) -> None:
        """The record holds in memory before it is written: no other device takes its name meanwhile."""
        former = agent.name

        def believe() -> None:
            known = self._fleet.registry.get(agent.serial)
            agent.name = known.name if known else former
            if agent.name != former:
                agent.on_event(m.BundleWanted(""))  # the holder of an override knows it by its old name
            self._fleet.changed(agent)

        await self._fleet.registry.save(record, believe)

    @run_to_completion
    async def _let_go(self, agent: Agent) -> None:
        """Forget an agent's record, and the agent itself when adb does not list it."""
        if (record := self._fleet.registry.get(agent.serial)) is not None:
            await self._fleet.registry.forget(agent.serial)
            if record.address:
                await self._disconnect(record.address)
        if agent.state.life is Life.GONE:
            await self._fleet.drop(agent)
        else:
            self._fleet.changed(agent)

    async def _disconnect(self, address: str) -> None:
        """Keep a network phone connected no longer. Whether adb still lists it is its server's business."""
        self._fleet.watcher.remove_network(address)
        try:
            async with asyncio.timeout(DISCONNECT_TIMEOUT_S):
                await self._fleet.client.disconnect(address)
        except (AdbError, TimeoutError) as error:
            log.info("%s: adb did not disconnect it: %s", address, error)


def find_agent(agents: Mapping[str, Agent], name: str) -> Agent:
    """One of `agents` (by serial) by its name or serial.

    Raises:
        NoSuchDeviceError: there is none; the hint names the nearest.
    """
    by_name = {agent.name: agent for agent in agents.values()}
    found = by_name.get(name) or agents.get(name) or by_name.get(normalise(name))
    if found is None:
        hint = did_you_mean(name, by_name, "see `farm device list`")
        raise NoSuchDeviceError(f"there is no device {name!r}", hint=hint)
    return found


async def _wait_for_end(agent: Agent, *, clean: bool) -> None:
    """Wait until the phone's server ended; a failure is raised only for `clean`, else logged."""
    try:
        await agent.finish_cleanup()
    except FarmError as error:
        if clean:
            raise
        log.info("%s was forgotten, but its server may still run: %s", agent.name, error)


def require_adopted(agent: Agent) -> Agent:
    """The device, unless it is not farm's to touch.

    Raises:
        UserError: it is not adopted.
    """
    if not agent.state.adopted:
        raise UserError(f"{agent.name} is not adopted: farm leaves it alone", hint=f"farm device adopt {agent.name}")
    return agent


def _require_reachable(agent: Agent) -> None:
    """Whether the device can be cleaned now.

    Raises:
        PhoneError: it is not connected, or not identified yet.
    """
    if agent.state.life in LINK_DOWN or not agent.state.identified:
        raise PhoneError(
            f"{agent.name} cannot be cleaned: it is {agent.state.life}",
            hint="connect it and wait until it is identified, or forget it without --clean",
        )


class BundleOverride:
    """Overrides the bundles of the agents that `find` knows; `subscribe` reports every change of a device."""

    def __init__(
        self,
        find: Callable[[str], Agent],
        subscribe: Callable[[Callable[[DeviceView], None]], Callable[[], None]],
    ) -> None:
        self._find = find
        self._subscribe = subscribe

    async def use(self, name: str, bundle: Bundle) -> None:
        """Change the device to `bundle`, at once; returns when it is READY with it.

        It keeps the bundle until another is wanted, `give_back`, or the end of its way to READY.

        Raises:
            NoSuchDeviceError: there is no such device.
            PhoneError: the bundle does not start or fails its check there, or the device went away; it is on
                its way back to its own bundle.
        """
        agent = self._find(name)
        news = asyncio.Event()

        def check(view: DeviceView) -> None:
            if view.serial == agent.serial:
                news.set()

        unsubscribe = self._subscribe(check)
        try:
            agent.override_bundle(bundle)
            while agent.state.bundle_override == bundle.hash:
                if agent.state.life is Life.READY:
                    return
                news.clear()
                await news.wait()
        finally:
            unsubscribe()
        why = agent.state.refusal or "it was given back meanwhile"
        raise PhoneError(
            f"{agent.name} does not run with bundle {bundle.name or bundle.short_hash}: {why}",
            Code.BUNDLE_NOT_TAKEN,
            hint=f"farm bundle verify {bundle.short_hash}; farm device show {agent.name}",
        )

    def give_back(self, name: str) -> None:
        """End the override: the device leaves READY at once and gets its own bundle back."""
        with suppress(NoSuchDeviceError):  # forgotten meanwhile: its server was ended
            self._find(name).on_event(m.BundleWanted(""))
