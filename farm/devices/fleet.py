"""All devices: follows adb's list with one agent per device, adopts them, publishes their views.

Everything here runs on the event loop's thread. The agent does the work of one device; the registry keeps records and
names.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from farm.adb.client import AdbClient
from farm.adb.devices import USB_PATH, AdbDevice, AdbState, usable
from farm.adb.watch import DeviceWatcher
from farm.common.errors import NoSuchDeviceError
from farm.common.events import EventLog
from farm.common.selector import Selector
from farm.common.tasks import BackgroundTasks, Begin, LastingTasks, end_tasks
from farm.devices.admin import BundleOverride, DeviceAdmin, find_agent, require_adopted
from farm.devices.agent import Agent
from farm.devices.agent_work import AgentContext, Checker
from farm.devices.battery_control import BatteryController, BatteryReport
from farm.devices.battery_policy import BatteryConfig
from farm.devices.health.findings import Findings
from farm.devices.health.health_rules import HealthConfig
from farm.devices.health.periodic_checks import PeriodicChecks
from farm.devices.health.probe.thermal import ProbeConfig
from farm.devices.health.probe_round import READ_TIMEOUT_S, ProbeRound
from farm.devices.identity.naming_rules import AdoptRule
from farm.devices.identity.serial_migration import SerialMigration, claimed, sick_twin
from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.messages import listed
from farm.devices.lifecycle.recovery import RecoveryConfig
from farm.devices.lifecycle.state import LifecycleState
from farm.devices.power.power_rules import UsbConfig
from farm.devices.power.switchboard import Switchboard, UsbFaults, place_of
from farm.devices.quiesce import QuiesceController
from farm.devices.recovery_control import RecoveryController, RecoveryLog
from farm.devices.registry import DeviceRegistry
from farm.devices.server.provision import note_residue
from farm.devices.thermal.thermal_gates import ThermalGates
from farm.devices.untether import Untether
from farm.devices.views import DeviceViews
from farm.model.device import DeviceView, Life, Service
from farm.model.identity import DeviceIdentity

if TYPE_CHECKING:
    from farm.devices.rollouts import Rollouts
    from farm.store.devices import BatteryTable, DeviceTable, RecoveryTable


async def no_other_host(_identity: DeviceIdentity, _starting: bool) -> str:
    """Of a host that belongs to no lab: no other host has its phones."""
    return ""


VIEWED_S = 30.0  # after `farm status` or a page of the web: then its reader has most probably left
LINK_MISSED_S = 30.0  # then the phone's other link is used
HEALTH_KEPT_EVERY_S = 300.0  # what a power cut may cost: people see the last probe of a phone that is away

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """The configuration of devices."""

    rules: Sequence[AdoptRule] = ()  # the first that matches adopts
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    probe_timeout_s: float = READ_TIMEOUT_S
    gates: ThermalGates = field(default_factory=ThermalGates)
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    power: Switchboard | None = None
    usb: UsbConfig = field(default_factory=UsbConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    battery: BatteryConfig = field(default_factory=BatteryConfig)


class Fleet:
    """Every device adb lists or the farm remembers."""

    def __init__(
        self,
        client: AdbClient,
        watcher: DeviceWatcher,
        rollouts: Rollouts,
        checker: Checker,
        table: DeviceTable,
        events: EventLog,
        config: FleetConfig,
        *,
        recoveries: RecoveryTable,
        batteries: BatteryTable,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`wall`: the time of readings, by which hosts of a lab tell their age."""
        self.wall = wall
        self.client = client
        self.watcher = watcher
        self.registry = DeviceRegistry(table, config.rules)
        self.rollouts = rollouts
        self._power = config.power
        self.device_views = DeviceViews(
            self.registry, events, config.gates, self._power.losing_power if self._power else lambda *_: ()
        )
        self._gates = config.gates
        self.probes = ProbeRound(
            client, lambda: tuple(self.agents.values()), self._probed, config.probe,
            timeout_s=config.probe_timeout_s, wall=wall,
        )  # fmt: skip
        self.batteries = BatteryController(
            client, events, config.battery, config.health, config.probe.every_s, batteries
        )
        self.findings = Findings(config.health, events, self.batteries.findings)
        self.recovery = RecoveryController(self, RecoveryLog(events, recoveries), config.recovery, config.power)
        self.quiesce = QuiesceController(client, self.find)
        self.untether = Untether(self, config.power)
        self._agent_context = AgentContext(
            client, rollouts, checker, self, self.device_views, self.recovery, self.quiesce.owners, config.power
        )
        rollouts.follow(self)
        self.bundle_overrides = BundleOverride(self.find, self.device_views.subscribe)
        self.usb_faults = UsbFaults(events)
        self.usb = config.usb
        self.agents: dict[str, Agent] = {}  # by serial
        self._periodic_checks = PeriodicChecks(self.agents.values, config.gates, config.health.check_every_h)
        self._tasks = BackgroundTasks()
        self.lasting = LastingTasks()  # of `run`
        self._migration = SerialMigration(self)
        self.surviving_session_secret: Callable[[str], str] = lambda _: ""  # see `outlived`, by name; set by the daemon
        # the other host that has a phone, as a reason, see `farm.leasing.lab_rules.host_with`; set by the daemon
        self.host_with: Callable[[DeviceIdentity, bool], Awaitable[str]] = no_other_host
        # whether a request waits for that name; set by the daemon
        self.is_awaited: Callable[[str], bool] = lambda _: False
        self._viewed_at = -VIEWED_S  # when a user last viewed the farm, monotonic seconds
        watcher.wanted = self.wanted
        self.admin = DeviceAdmin(self)
        self._in_hands: set[str] = set()  # names of devices that people have
        self._silent: set[str] = set()  # serials on hubs none of whose phones answers, though adb lists them

    # -- running --

    async def run(self) -> None:
        """Follow adb until cancelled. Servers on phones are left running: the next daemon replaces them."""
        for record in self.registry.records():
            agent = self.agents.get(record.serial) or self.add(record.serial)
            self.changed(agent)
            with self._contain_bugs(record.serial):
                if record.serial.startswith(USB_PATH) and record.hardware_serial:
                    self.client.shared_serials.add(record.hardware_serial)
                if record.address:
                    self.watcher.add_network(record.address)
        self.recovery.log.begin()
        running = [self.lasting.start(name, begin) for name, begin in self._lasting_tasks().items()]
        try:
            await asyncio.gather(*running)
        finally:
            await end_tasks(*running)
            self.quiesce.close()
            for agent in self.agents.values():
                self.registry.remember_health(agent.serial, agent.health, agent.read_at)
            closing = [agent.close() for agent in self.agents.values()]
            await asyncio.gather(self._tasks.end(0.0), *closing, return_exceptions=True)
            await asyncio.gather(self.registry.close(), self.recovery.log.close())

    def _lasting_tasks(self) -> dict[str, Begin]:
        return {
            "adb watcher": self.watcher.run,
            "fleet list": self._follow_list,
            "fleet probes": self.probes.run,
            "fleet gates": self.device_views.run,
            "fleet checks": self._periodic_checks.run,
            "fleet batteries": partial(self.batteries.run, self.agents.values),
            "fleet rollouts": self.rollouts.run,
            **({} if self._power is None else {"fleet switched-off ports": self._power.run}),
        }

    async def _follow_list(self) -> None:
        async for snapshot in self.watcher.snapshots():
            self.devices_changed(snapshot)

    def devices_changed(self, snapshot: Sequence[AdbDevice]) -> None:
        """Take adb's list as it is now."""
        now = {device.serial: device for device in snapshot}
        self._silent &= now.keys()
        dead = self._silent | {serial for serial, device in now.items() if device.state is AdbState.OFFLINE}
        affected = self.usb_faults.update(self.agents, now, dead, server_lost=self.watcher.server_lost)
        for serial, agent in tuple(self.agents.items()):
            if serial not in now and agent.device is not None:
                with self._contain_bugs(serial):
                    self._unlisted(agent)
        for serial, device in now.items():
            with self._contain_bugs(serial):
                self._listed(device)
        for agent in affected:
            self.changed(agent)

    # -- views --

    def views(self) -> tuple[DeviceView, ...]:
        """Every device, by name."""
        return self.device_views.views()

    def view(self, name: str) -> DeviceView:
        """One device by name or serial.

        Raises:
            NoSuchDeviceError: there is none; the hint names the nearest.
        """
        return self.device_views.view(self.find(name).serial)

    def adopted_view(self, name: str) -> DeviceView:
        """One adopted device by name or serial: on unadopted devices only read-only commands may run.

        Raises:
            NoSuchDeviceError: there is none.
            UserError: it is not adopted.
        """
        return self.device_views.view(require_adopted(self.find(name)).serial)

    async def battery(self, name: str) -> BatteryReport:
        """The known state of one device's battery.

        Raises:
            NoSuchDeviceError: there is none; the hint names the nearest.
        """
        return await self.batteries.report(self.find(name))

    def bundles_in_use(self) -> dict[str, tuple[str, ...]]:
        """Bundle hash -> names of the devices that have or get it. May be called from any thread."""
        return self.device_views.bundles_in_use(
            [(agent.installing, agent.name) for agent in tuple(self.agents.values())]
        )

    def subscribe(self, callback: Callable[[DeviceView], None]) -> Callable[[], None]:
        """Call back with each new view, at once and in order; returns the function that ends it.

        A device that is no longer known is shown a last time: not adopted and gone.
        """
        return self.device_views.subscribe(callback)

    def note_view(self) -> None:
        """A user views the farm now: network phones that are away are tried sooner for `VIEWED_S`."""
        self._viewed_at = time.monotonic()

    def wanted(self, serial: str) -> bool:
        """Whether a request waits for that device, or a user has just viewed the farm."""
        agent = self.agents.get(serial)
        return time.monotonic() - self._viewed_at < VIEWED_S or (agent is not None and self.is_awaited(agent.name))

    # -- leases and sessions --

    async def dial(self, name: str, timeout_s: float) -> tuple[socket.socket, str]:
        """A non-blocking socket to the device's RPC server, and that server's key.

        Raises:
            NoSuchDeviceError: there is no such device.
            PhoneError: it has no server now.
            AdbError: the phone did not connect.
        """
        return await self.find(name).dial(timeout_s)

    def server_port(self, name: str) -> int:
        """See `Agent.server_port`; 0 of no such device, too."""
        with suppress(NoSuchDeviceError):
            return self.find(name).server_port
        return 0

    def report_broken_session(self, name: str, reason: str) -> None:
        """A session left the device in doubt: it leaves READY at once, is cleaned and checked again."""
        with suppress(NoSuchDeviceError):  # forgotten meanwhile: nothing to clean
            self.find(name).on_event(m.SessionBroke(reason))

    async def note_before_lease(self, name: str) -> None:
        """A person gets the device: note its files and processes, so that `clean_and_check` can remove the rest.

        Raises:
            NoSuchDeviceError, PhoneError: there is no such device, or it could not be done.
        """
        self.still_in_hands(name)
        agent = self.find(name)
        agent.noted = await note_residue(self.client, agent.serial)

    def still_in_hands(self, name: str) -> None:
        """A person has the device: nothing of theirs is removed until `clean_and_check`."""
        self._in_hands.add(name)

    def clean_and_check(self, name: str, reason: str) -> None:
        """A person has left the device: it leaves READY, is cleaned and checked at once, or when it returns."""
        self._in_hands.discard(name)
        self.quiesce.leave(name)
        with suppress(NoSuchDeviceError):
            self.find(name).on_event(m.LeftByPerson(reason))

    def own_bundle(self, name: str) -> None:
        """The lease ended: an overriding bundle is exchanged for the device's own before the next lease."""
        self.bundle_overrides.give_back(name)

    async def bundles_changed(self, added: str = "") -> None:
        """The library changed: devices without a bundle try again, the rest change in turn.

        `added`: the bundle (a hash) that an operator added, perhaps once more.
        """
        await self.rollouts.refresh(added)
        for agent in tuple(self.agents.values()):
            agent.on_event(m.PlainEvent.BUNDLES_CHANGED)

    def set_aliases(self, aliases: Mapping[str, Selector]) -> None:
        """Replace the keys set by hand (farm.devices.registry)."""
        self.registry.set_aliases(aliases)
        for agent in tuple(self.agents.values()):
            self.changed(agent)

    def use(
        self,
        rules: Sequence[AdoptRule],
        probe: ProbeConfig,
        health: HealthConfig,
        battery: BatteryConfig,
        recovery: RecoveryConfig,
    ) -> None:
        """Take a new configuration; phones that wait for adoption are matched against the new rules."""
        self.registry.rules = tuple(rules)
        self.probes.use(probe)
        self.findings.use(health)
        self.batteries.use(battery, health, probe.every_s)
        self._periodic_checks.use(health.check_every_h)
        self.recovery.use(recovery)
        for agent in tuple(self.agents.values()):
            if agent.identity is not None and not agent.state.adopted and self.identified(agent, agent.identity):
                agent.on_event(m.PlainEvent.ADOPTED)
            self.changed(agent)  # gates and budgets may say otherwise now

    # -- for agents --

    async def boots_beside(self, agent: Agent, identity: DeviceIdentity) -> dict[str, str]:
        """The boot ids of links that are not identified yet and may be the same phone's, by serial."""
        return await self._migration.boots_beside(agent, identity)

    def identified(
        self, agent: Agent, identity: DeviceIdentity, boots: Mapping[str, str] = MappingProxyType({})
    ) -> bool:
        """Put a name to an identity; returns whether the device is adopted and this link used.

        `boots`: the boot ids of this link and of those beside it, by serial.
        """
        self._answered(agent)
        before, agent.identity = agent.identity, identity
        used = self._migration.used_link(agent, boots, held=self._gates.holds)
        agent.boot = boots.get(agent.serial, agent.boot)
        agent.other_link = f"{used.name} is this phone, by its link {used.serial}" if used else ""
        if used is None:
            self._migration.identified(agent, before, identity)
        self._locate(agent)
        if used is not None:
            return False
        known = self.registry.get(agent.serial)
        adopted = self.named(agent, identity)
        if adopted and (known is None or not known.adopted):
            self._share_quarantine(agent)
        return adopted

    async def find_external_cause(self, agent: Agent, since_s: float) -> None:
        """A phone failed: find out whether the adb server has failed since then too, or its whole hub is silent."""
        if not await self.watcher.did_its_part(since_s) or agent.place is None:
            return
        on_hub = self._beside(agent)
        silent = len(on_hub) > 1 and not await self.watcher.reaches_any(usable(on_hub.values()))
        if not silent or not agent.external_cause:  # an earlier cause is over, or was another hub's
            self._note_silent(self._silent - on_hub.keys())
        if silent:
            self._note_silent(self._silent | on_hub.keys())

    def _beside(self, agent: Agent) -> dict[str, AdbDevice]:
        """The devices that adb lists on the hub of an agent with a place, itself included, by serial."""
        hub = agent.place.hub if agent.place else ""
        beside = [each for each in self.agents.values() if each.place is not None and each.place.hub == hub]
        return {each.serial: each.device for each in beside if each.device is not None}

    def _note_silent(self, serials: set[str]) -> None:
        if serials != self._silent:
            self._silent = serials
            self.devices_changed(self.watcher.devices or ())

    def changed(self, agent: Agent) -> None:
        """Publish the agent's view if it differs from the last one."""
        if self.agents.get(agent.serial) is not agent:
            return
        shown = self.device_views.update(agent)
        if shown and agent.state.life is Life.READY and not agent.health_at:
            self.spawn(self.probes.read(agent), f"first probe {agent.name}")

    def in_hands(self, agent: Agent) -> bool:
        """Whether a person has the device now."""
        return agent.name in self._in_hands

    def outlived(self, agent: Agent) -> str:
        """The secret of its server while a session of the daemon before this one is open there; "" when none is."""
        return self.surviving_session_secret(agent.name)

    # -- for the migration of serials --

    def named(self, agent: Agent, identity: DeviceIdentity) -> bool:
        """Give an identified device the name that is remembered or follows from a rule; whether it is adopted."""
        taken = self.device_views.other_keys(agent.serial)
        record = self.registry.identified(agent.serial, identity, taken)
        agent.name = record.name if record else self.registry.name_for(agent.serial, identity, taken)
        return record is not None

    def spawn(self, what: Coroutine[object, object, None], name: str) -> None:
        """Run a task that ends with the fleet at the latest."""
        self._tasks.spawn(what, name)

    # -- for operators' orders --

    def add(self, serial: str) -> Agent:
        """An agent for a serial that has none, as its record and the store remember the device."""
        record = self.registry.get(serial)
        state = LifecycleState(adopted=record.adopted, service=Service(record.service)) if record else LifecycleState()
        names = {agent.name for agent in self.agents.values()}
        state = self.recovery.log.remembered(serial, state)
        agent = Agent(serial, self.registry.name_for(serial, None, names), self._agent_context, state)
        if record is not None:
            agent.identity = record.identity
            if record.health is not None:
                agent.show_health(record.health, record.health_at)
        self.agents[serial] = agent
        return agent

    async def drop(self, agent: Agent) -> None:
        """Close the agent of a device without a record, unless adb lists it, and publish it as gone."""
        if agent.device is None and self.agents.get(agent.serial) is agent:
            del self.agents[agent.serial]
            self.device_views.take_down(agent.serial, agent.state.reason)
            await agent.close()

    # -- below --

    def _answered(self, agent: Agent) -> None:
        """A phone answered: its hub works."""
        if agent.serial in self._silent:
            self._note_silent(self._silent - self._beside(agent).keys())

    def _share_quarantine(self, agent: Agent) -> None:
        """A phone in quarantine is not back in service because adb lists it, or a phone that claims to be it, again."""
        if (twin := sick_twin(agent, self.agents.values())) is not None and twin.state.quarantine is not None:
            before = agent.state
            agent.keep_away(twin.state.quarantine)
            self.recovery.recovery_changed(agent, before)

    def _probed(self, agent: Agent) -> None:
        """Publish the findings of a probe, then report them to recovery."""
        self._answered(agent)
        held = self._gates.holds(agent.name)
        self.registry.remember_health(agent.serial, agent.health, agent.read_at, HEALTH_KEPT_EVERY_S)
        try:
            found = self.findings.take(agent, held=held, in_hands=self.in_hands(agent))
        finally:
            self.changed(agent)  # gates judge its heat whatever else is wrong
        for event in found:
            agent.on_event(event)

    def _listed(self, device: AdbDevice) -> None:
        agent = self.agents.get(device.serial) or self.add(device.serial)
        if agent.device is not None and agent.device.transport_id != device.transport_id:
            agent.boot = ""
            agent.on_event(m.PlainEvent.UNLISTED)  # gone and back between two lists: its streams are dead
        agent.device, before = device, agent.device
        if before is None or before.devpath != device.devpath:
            self._locate(agent)
        agent.on_event(listed(device, agent.adb))

    def _locate(self, agent: Agent) -> None:
        """Where it is plugged in, or was before it left. A phone's own word is no proof."""
        hardware_serial = agent.identity.hardware_serial if agent.identity else ""
        devpath = agent.device.devpath if agent.device else ""
        agent.place = place_of(self.usb, agent.serial, devpath)
        if agent.place is None and hardware_serial:
            agent.place = place_of(self.usb, agent.serial, devpath, hardware_serial)
            if agent.place is not None and claimed(agent, self.agents.values()):
                agent.place = None

    def _unlisted(self, agent: Agent) -> None:
        if others := self._migration.second_links(agent):
            self.spawn(self._use_other_link(agent, others), f"other link of {agent.name}")
        agent.device, agent.boot, agent.other_link = None, "", ""
        self.registry.remember_health(agent.serial, agent.health, agent.read_at)
        agent.health_at = 0.0
        agent.on_event(m.PlainEvent.UNLISTED)
        if self.registry.get(agent.serial) is None:
            self.spawn(self.drop(agent), f"drop {agent.name}")

    async def _use_other_link(self, agent: Agent, others: Sequence[Agent]) -> None:
        """Use another link of a phone whose link is gone for LINK_MISSED_S, unless farm itself sent it away."""
        while agent.device is None and self.agents.get(agent.serial) is agent:
            await asyncio.sleep(LINK_MISSED_S)
            if agent.device is None and not agent.state.progress.sent_away:
                for other in others:
                    self.identify_anew(other)
                return

    def identify_anew(self, agent: Agent) -> None:
        """Begin with a link as if it had just been plugged in."""
        if agent.device is not None and self.agents.get(agent.serial) is agent:
            agent.boot = ""
            agent.on_event(m.PlainEvent.UNLISTED)
            agent.on_event(listed(agent.device, agent.adb))

    @contextmanager
    def _contain_bugs(self, serial: str) -> Iterator[None]:
        """A bug in farm over one device quarantines that device; all other devices continue."""
        try:
            yield
        except Exception as error:
            agent = self.agents.get(serial)
            if agent is None:
                log.exception("%s: a bug in farm; it is not followed", serial)
            else:
                agent.bug_found(error)

    def find(self, name: str) -> Agent:
        """One agent by the name or serial of its device.

        Raises:
            NoSuchDeviceError: there is none; the hint names the nearest.
        """
        return find_agent(self.agents, name)
