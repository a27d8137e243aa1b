"""Orders of operators about devices: adopt, change, drain, forget."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

from farm.adb.client import AdbClient
from farm.core import lifecycle_messages as m
from farm.core.device import DeviceView, Life, Service
from farm.core.errors import NoSuchDeviceError
from farm.fleet.agent import Agent
from farm.fleet.agents import find_agent, part, require_adopted, require_reachable
from farm.fleet.battery_care import BatteryCare
from farm.fleet.board import Board
from farm.fleet.findings import Findings
from farm.fleet.links import Watcher, part_from_network
from farm.fleet.registry import Registry
from farm.store.changes import to_its_end
from farm.store.records import DeviceRecord


class Roster(Protocol):
    """What else the fleet does for a device that comes, changes or goes by order."""

    def add(self, serial: str) -> Agent:
        """A device that is heard of for the first time."""

    def changed(self, agent: Agent) -> None:
        """Show the agent as it is now."""

    async def drop(self, agent: Agent) -> None:
        """Let go of a device that nobody remembers, if adb does not list it."""


class Orders:
    """One per fleet; works on its agents. Each order is carried out to its end, those about a device one by one."""

    def __init__(
        self,
        agents: Mapping[str, Agent],
        registry: Registry,
        board: Board,
        batteries: BatteryCare,
        findings: Findings,
        client: AdbClient,
        watcher: Watcher,
        roster: Roster,
    ) -> None:
        self._agents = agents  # by serial
        self._registry = registry
        self._board = board
        self._batteries = batteries
        self._findings = findings
        self._client = client
        self._watcher = watcher
        self._roster = roster

    @to_its_end
    async def adopt(self, name: str, *, pool: str = "", rename: str = "") -> DeviceView:
        """Take a device into the farm; its provisioning begins.

        Raises:
            NoSuchDeviceError, UserError: there is none, or the new name is taken or no name.
        """
        async with self._order(name) as agent:
            record = replace(self._record_of(agent), name=agent.name, adopted=True)
            taken = self._board.taken(agent.serial)
            await self._keep(agent, self._registry.edited(record, taken, rename or None, pool or None))
            agent.tell(m.Adopted())
            return self._board.view(agent.serial)

    @to_its_end
    async def change(
        self, name: str, *, rename: str | None = None, pool: str | None = None, labels: Mapping[str, str] | None = None
    ) -> DeviceView:
        """Change a device's name, pool or hand-set labels (an empty value removes a label).

        Raises:
            NoSuchDeviceError, UserError: there is none, the new name is taken or no name, or a label is not for people.
        """
        async with self._order(name) as agent:
            record, taken = self._record_of(agent), self._board.taken(agent.serial)
            await self._keep(agent, self._registry.edited(record, taken, rename, pool, labels or {}))
            return self._board.view(agent.serial)

    @to_its_end
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
                now = None if service is Service.IN else datetime.now(UTC)
                record = replace(before, service=service.value, ordered_by=by if now else "", ordered_at=now)
            await self._keep(agent, record)
            agent.tell(m.ServiceChanged(service))
            if record != before:
                self._board.ordered(agent, service, Service(before.service), by)
            if service is Service.IN:
                self._findings.released(agent)
                agent.tell(m.Released())
            return self._board.view(agent.serial)

    def ordered(self, name: str) -> str:
        """Who took a device out of service, and when; "" when it is in service.

        Raises:
            NoSuchDeviceError: there is none.
        """
        record = self._registry.get(find_agent(self._agents, name).serial)
        if record is None or record.ordered_at is None:
            return ""
        return f"{record.ordered_by or 'somebody'} at {record.ordered_at:%Y-%m-%d %H:%M:%S} UTC"

    @to_its_end
    async def add_network(self, address: str) -> str:
        """Keep a network phone connected for ever; returns the serial it will be listed under."""
        serial = self._watcher.add_network(address)
        if serial not in self._agents:
            self._roster.add(serial)
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

    async def _give_back(self, agent: Agent, *, clean: bool) -> None:
        if clean:
            require_reachable(agent)
        await self._batteries.allow(agent)
        agent.tell(m.Unadopted(clean))
        agent.server = None
        try:
            await part(agent, clean=clean)
            await self._let_go(agent)
        finally:
            record = self._registry.get(agent.serial)
            if record is not None and record.adopted:  # it did not work: what farm does must agree with its record
                agent.tell(m.Adopted())

    def _record_of(self, agent: Agent) -> DeviceRecord:
        hardware_serial = agent.identity.hardware_serial if agent.identity else ""
        return self._registry.get(agent.serial) or DeviceRecord(agent.serial, agent.name, hardware_serial)

    @asynccontextmanager
    async def _order(self, name: str) -> AsyncIterator[Agent]:
        """The device of an order, when the order before is done: what is read of it holds until this one is kept."""
        agent = find_agent(self._agents, name)
        async with agent.orders:
            if self._agents.get(agent.serial) is not agent:
                raise NoSuchDeviceError(f"{agent.name} was forgotten meanwhile", hint="see `farm device list`")
            yield agent

    async def _keep(self, agent: Agent, record: DeviceRecord) -> None:
        """Everybody believes the record before it is written: nobody else takes its name meanwhile."""
        former = agent.name

        def believe() -> None:
            known = self._registry.get(agent.serial)
            agent.name = known.name if known else former
            if agent.name != former:
                agent.tell(m.BundleWanted(""))  # nobody who borrowed it knows it by its new name
            self._roster.changed(agent)

        await self._registry.save(record, believe)

    @to_its_end
    async def _let_go(self, agent: Agent) -> None:
        """Forget an agent's record, and the agent itself when adb does not list it."""
        if (record := self._registry.get(agent.serial)) is not None:
            await self._registry.forget(agent.serial)
            if record.address:
                await part_from_network(self._client, self._watcher, record.address)
        if agent.state.life is Life.GONE:
            await self._roster.drop(agent)
        else:
            self._roster.changed(agent)
