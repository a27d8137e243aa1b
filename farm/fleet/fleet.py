"""All devices: follows adb's list with one agent per device, adopts them, shows them.

Everything here runs on the event loop's thread. What a single device does is its agent's business; what the farm
remembers and how it calls a device is the registry's.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from farm.adb.client import AdbClient
from farm.adb.devices import AdbDevice
from farm.adb.devices import DeviceState as AdbState
from farm.core import lifecycle_messages as m
from farm.core.adoption import AdoptionRule
from farm.core.battery_care import BatteryConfig
from farm.core.device import DeviceView, Life, Service
from farm.core.errors import NoSuchDeviceError
from farm.core.events import EventLog
from farm.core.health_rules import HealthConfig
from farm.core.identity import DeviceIdentity
from farm.core.lifecycle_state import DeviceState
from farm.core.recovery import RecoveryConfig
from farm.core.selector import Selector
from farm.core.sensors import ProbeConfig
from farm.core.tasks import tell_failure
from farm.fleet.agent import Agent
from farm.fleet.agents import find_agent
from farm.fleet.battery_care import BatteryBook, BatteryCare, BatteryLook
from farm.fleet.board import Board
from farm.fleet.care import Care, CareConfig
from farm.fleet.checker import Checker
from farm.fleet.findings import Findings
from farm.fleet.gates import Gates
from farm.fleet.lending import Lending
from farm.fleet.links import Watcher, alone, listed
from farm.fleet.means import BundleSource, Means
from farm.fleet.moving import Moving
from farm.fleet.orders import Orders
from farm.fleet.probe.read import READ_TIMEOUT_S
from farm.fleet.probe_round import ProbeRound
from farm.fleet.quiesce import Quieting
from farm.fleet.recovery_log import RecoveryBook, RecoveryLog
from farm.fleet.registry import DeviceBook, Registry
from farm.fleet.same_phone import claimed, sick_twin
from farm.fleet.sanity import Sanity
from farm.fleet.traces import note
from farm.fleet.usb import Topology
from farm.fleet.usb_faults import UsbFaults

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """What operators configured about devices."""

    rules: Sequence[AdoptionRule] = ()  # the first that matches adopts
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    probe_timeout_s: float = READ_TIMEOUT_S
    gates: Gates = field(default_factory=Gates)
    care: CareConfig = field(default_factory=CareConfig)
    topology: Topology = field(default_factory=Topology)
    health: HealthConfig = field(default_factory=HealthConfig)
    battery: BatteryConfig = field(default_factory=BatteryConfig)


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
        *,
        recoveries: RecoveryBook,
        batteries: BatteryBook,
    ) -> None:
        self._client = client
        self._watcher = watcher
        self._registry = Registry(book, config.rules)
        self._power = config.care.power
        self._board = Board(self._registry, events, config.gates, self._power.hurt if self._power else lambda *_: ())
        self._gates = config.gates
        self.probes = ProbeRound(
            client,
            lambda: tuple(self._agents.values()),
            self._probed,
            every_s=config.probe.every_s,
            timeout_s=config.probe_timeout_s,
            policies=config.probe.model,
        )
        self.batteries = BatteryCare(client, events, config.battery, config.health, config.probe.every_s, batteries)
        self.findings = Findings(config.health, events, self.batteries.findings)
        self.care = Care(self._find, self._board.views, RecoveryLog(events, recoveries), config.care, self.in_hands)
        self.quiet = Quieting(client, self._find)
        self._means = Means(
            client, bundles, checker, self, self._board, self.care, quiet=self.quiet.owners, power=config.care.power
        )
        self.lending = Lending(self._find, self._board.subscribe)
        self.usb_faults = UsbFaults(events)
        self._topology = config.topology
        self._agents: dict[str, Agent] = {}  # by serial
        self._sanity = Sanity(self._agents.values, config.gates, config.health.check_every_h)
        self._tasks: set[asyncio.Task[None]] = set()
        self._moving = Moving(self._agents, self._registry, self._board, self.care.log, self.batteries, self)
        self.outlived_on: Callable[[str], str] = lambda _: ""  # see `outlived`, by name; set by whoever has the gate
        self.orders = Orders(
            self._agents, self._registry, self._board, self.batteries, self.findings, client, watcher, self
        )
        self._in_hands: set[str] = set()  # names of devices that people have

    # -- running --

    async def run(self) -> None:
        """Follow adb until cancelled. Servers on phones are left running: the next daemon replaces them."""
        for record in self._registry.records():
            if record.address:
                self._watcher.add_network(record.address)
            self.changed(self._agents.get(record.serial) or self.add(record.serial))
        self.care.log.begin()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watcher.run(), name="adb watcher")
                group.create_task(self._follow_list(), name="fleet list")
                group.create_task(self.probes.run(), name="fleet probes")
                group.create_task(self._board.run(), name="fleet gates")
                group.create_task(self._sanity.run(), name="fleet checks")
                group.create_task(self.batteries.run(self._agents.values), name="fleet batteries")
                if self._power is not None:
                    group.create_task(self._power.run(), name="fleet dark ports")
        finally:
            for task in tuple(self._tasks):
                task.cancel()
            self.quiet.close()
            closing = [agent.close() for agent in self._agents.values()]
            await asyncio.gather(*self._tasks, *closing, return_exceptions=True)
            await self._registry.close()
            await self.care.log.close()

    async def _follow_list(self) -> None:
        async for snapshot in self._watcher.snapshots():
            self.devices_changed(snapshot)

    def devices_changed(self, snapshot: Sequence[AdbDevice]) -> None:
        """Take adb's list as it is now."""
        now = {device.serial: device for device in snapshot}
        dead = {serial for serial, device in now.items() if device.state is AdbState.OFFLINE}
        explained = self.usb_faults.look(self._agents, now, dead, server_lost=self._watcher.server_lost)
        for serial, agent in tuple(self._agents.items()):
            if serial not in now and agent.device is not None:
                with alone(self._agents, serial):
                    self._unlisted(agent)
        for serial, device in now.items():
            with alone(self._agents, serial):
                self._listed(device)
        for agent in explained:
            self.changed(agent)

    # -- looking --

    def views(self) -> tuple[DeviceView, ...]:
        """Every device, by name."""
        return self._board.views()

    def view(self, name: str) -> DeviceView:
        """One device by name or serial.

        Raises:
            NoSuchDeviceError: there is none; the hint names the nearest.
        """
        return self._board.view(self._find(name).serial)

    def battery(self, name: str) -> BatteryLook:
        """What is known of one device's battery.

        Raises:
            NoSuchDeviceError: there is none; the hint names the nearest.
        """
        return self.batteries.look(self._find(name))

    def bundles_in_use(self) -> dict[str, tuple[str, ...]]:
        """Bundle hash -> names of the devices that have or get it. May be called from any thread."""
        return self._board.bundles_in_use([(agent.installing, agent.name) for agent in tuple(self._agents.values())])

    def subscribe(self, callback: Callable[[DeviceView], None]) -> Callable[[], None]:
        """Call back with each new view, at once and in order; returns the function that ends it.

        A device that is no longer known is shown a last time: not adopted and gone.
        """
        return self._board.subscribe(callback)

    # -- using --

    async def dial(self, name: str, timeout_s: float) -> tuple[socket.socket, str]:
        """A non-blocking socket to the device's RPC server, and that server's key.

        Raises:
            NoSuchDeviceError: there is no such device.
            ServerGoneError: it has no server now.
            AdbError: the phone did not connect.
        """
        return await self._find(name).dial(timeout_s)

    def report_broken_session(self, name: str, reason: str) -> None:
        """A session left the device in doubt: it leaves READY at once, is cleaned and checked again."""
        with suppress(NoSuchDeviceError):  # forgotten meanwhile: nothing to clean
            self._find(name).tell(m.SessionBroke(reason))

    async def note_before_lease(self, name: str) -> None:
        """A person gets the device: note what is on it, so that `clean_and_check` knows what they left.

        Raises:
            NoSuchDeviceError, PhoneError: there is no such device, or it could not be done.
        """
        self.still_in_hands(name)
        agent = self._find(name)
        agent.noted = await note(self._client, agent.serial)

    def still_in_hands(self, name: str) -> None:
        """A person has the device: nothing of theirs is removed until `clean_and_check`."""
        self._in_hands.add(name)

    def clean_and_check(self, name: str, reason: str) -> None:
        """A person has left the device: it leaves READY at once, is cleaned and checked; one that is away, later."""
        self._in_hands.discard(name)
        self.quiet.leave(name)
        with suppress(NoSuchDeviceError):
            self._find(name).tell(m.LeftByPerson(reason))

    def own_bundle(self, name: str) -> None:
        """Whoever had the device is done with it: a lent bundle is exchanged for its own before anybody gets it."""
        self.lending.give_back(name)

    def bundles_changed(self) -> None:
        """The library changed: devices that had no bundle try again; the others change at their next provisioning."""
        for agent in tuple(self._agents.values()):
            agent.tell(m.BundlesChanged())

    def set_aliases(self, aliases: Mapping[str, Selector]) -> None:
        """Replace the keys set by hand (farm.fleet.aliases)."""
        self._registry.set_aliases(aliases)
        for agent in tuple(self._agents.values()):
            self.changed(agent)

    def use(
        self,
        rules: Sequence[AdoptionRule],
        probe: ProbeConfig,
        health: HealthConfig,
        battery: BatteryConfig,
        recovery: RecoveryConfig,
    ) -> None:
        """What operators configure, from now on; phones that wait for adoption are held against the new rules."""
        self._registry.rules = tuple(rules)
        self.probes.use(probe.every_s, probe.model)
        self.findings.use(health)
        self.batteries.use(battery, health, probe.every_s)
        self._sanity.use(health.check_every_h)
        self.care.use(recovery.per_day())
        for agent in tuple(self._agents.values()):
            if agent.identity is not None and not agent.state.adopted and self.identified(agent, agent.identity):
                agent.tell(m.Adopted())
            self.changed(agent)  # gates and budgets may say otherwise now

    # -- what agents tell (farm.fleet.agent.Owner) --

    def identified(self, agent: Agent, identity: DeviceIdentity) -> bool:
        """Put a name to an identity; returns whether the device is adopted."""
        before, agent.identity = agent.identity, identity
        self._moving.identified(agent, before, identity)
        self._locate(agent)
        known = self._registry.get(agent.serial)
        adopted = self.named(agent, identity)
        if adopted and (known is None or not known.adopted):
            self._share_quarantine(agent)
        return adopted

    def changed(self, agent: Agent) -> None:
        """Publish the agent's view if it differs from the last one."""
        if self._agents.get(agent.serial) is not agent:
            return
        shown = self._board.show(agent)
        if shown and agent.state.life is Life.READY and agent.health is None:
            self.spawn(self.probes.read(agent), f"first probe {agent.name}")

    def in_hands(self, agent: Agent) -> bool:
        """Whether a person has the device now."""
        return agent.name in self._in_hands

    def outlived(self, agent: Agent) -> str:
        """The secret of its server while a session of the daemon before this one is open there; "" when none is."""
        return self.outlived_on(agent.name)

    # -- what moving records needs (farm.fleet.moving.Household) --

    def named(self, agent: Agent, identity: DeviceIdentity) -> bool:
        """Give an identified device the name that is remembered or follows from a rule; whether it is adopted."""
        taken = self._board.taken(agent.serial)
        record = self._registry.identified(agent.serial, identity, taken)
        agent.name = record.name if record else self._registry.name_for(agent.serial, identity, taken)
        return record is not None

    def spawn(self, what: Coroutine[object, object, None], name: str) -> None:
        """Do this beside everything else; it ends with the fleet."""
        task = asyncio.create_task(what, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(tell_failure)

    # -- what orders need (farm.fleet.orders.Roster) --

    def add(self, serial: str) -> Agent:
        """An agent for a serial that has none, as its record and the store remember the device."""
        record = self._registry.get(serial)
        state = DeviceState(adopted=record.adopted, service=Service(record.service)) if record else DeviceState()
        names = {agent.name for agent in self._agents.values()}
        state = self.care.log.remembered(serial, state)
        agent = Agent(serial, self._registry.name_for(serial, None, names), self._means, state)
        self._agents[serial] = agent
        return agent

    async def drop(self, agent: Agent) -> None:
        """Nobody remembers it: unless adb lists it, show it gone and let it go."""
        if agent.device is None and self._agents.get(agent.serial) is agent:
            del self._agents[agent.serial]
            self._board.take_down(agent.serial, agent.state.reason)
            await agent.close()

    # -- below --

    def _share_quarantine(self, agent: Agent) -> None:
        """A phone in quarantine is not back in service because adb lists it, or one that says it is it, anew."""
        if (twin := sick_twin(agent, self._agents.values())) is not None and twin.state.quarantine is not None:
            before = agent.state
            agent.keep_away(twin.state.quarantine)
            self.care.climbed(agent, before)

    def _probed(self, agent: Agent) -> None:
        """Show what a probe found, then let recovery have it."""
        held = self._gates.holds(agent.name)
        try:
            found = self.findings.take(agent, held=held, in_hands=self.in_hands(agent))
        finally:
            self.changed(agent)  # gates judge its heat whatever else is wrong
        for event in found:
            agent.tell(event)

    def _listed(self, device: AdbDevice) -> None:
        agent = self._agents.get(device.serial) or self.add(device.serial)
        if agent.device is not None and agent.device.transport_id != device.transport_id:
            agent.tell(m.Unlisted())  # gone and back between two lists: its streams are dead
        agent.device, before = device, agent.device
        if before is None or before.devpath != device.devpath:
            self._locate(agent)
        agent.tell(listed(device))

    def _locate(self, agent: Agent) -> None:
        """Where it is plugged in; one that is away is where it was. What a phone says of itself is no proof."""
        hardware_serial = agent.identity.hardware_serial if agent.identity else ""
        devpath = agent.device.devpath if agent.device else ""
        agent.place = self._topology.place_of(agent.serial, devpath)
        if agent.place is None and hardware_serial:
            agent.place = self._topology.place_of(agent.serial, devpath, hardware_serial)
            if agent.place is not None and claimed(agent, self._agents.values()):
                agent.place = None

    def _unlisted(self, agent: Agent) -> None:
        agent.device = None
        agent.tell(m.Unlisted())
        if self._registry.get(agent.serial) is None:
            self.spawn(self.drop(agent), f"drop {agent.name}")

    def _find(self, name: str) -> Agent:
        return find_agent(self._agents, name)
