"""The way to the phones: adb's server and client, the watcher, the fleet over it, keys they answer to, and tunnels."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from farm.adb.client import AdbClient
from farm.adb.errors import AdbNotInstalled
from farm.adb.program import AdbBinary, find_adb
from farm.adb.server import AdbServer, ManagedAdbServer
from farm.adb.tunnels import TunnelLedger
from farm.adb.watch import DeviceWatcher
from farm.bundle.library import BundleLibrary
from farm.common.doctor_findings import FAIL, Diagnosis, of_error
from farm.common.errors import FarmError
from farm.config import AdbConfig, FarmConfig
from farm.control.verbs.doctor import usb_findings
from farm.daemon.persistence import Persistence
from farm.daemon.problems import Problems, unresolved_names
from farm.devices.agent_work import Checker
from farm.devices.fleet import Fleet, FleetConfig
from farm.devices.health.probe_round import read_conditions
from farm.devices.health.series import FleetReadings
from farm.devices.identity.naming_rules import aliases_of
from farm.devices.power.power_rules import PowerConfig
from farm.devices.power.switchboard import Switchboard, judge_phones, phones_on_usb
from farm.devices.registry import Aliases
from farm.devices.rollouts import Rollouts
from farm.devices.thermal.thermal_gates import ThermalGates
from farm.devices.tunnels import TunnelKeeper
from farm.jobs.toolchains import Toolchains
from farm.leasing.lab_rules import host_with
from farm.leasing.lab_view import LabView
from farm.model.health import DISTURBING
from farm.model.identity import DeviceIdentity


@dataclass(frozen=True, slots=True)
class Phones:
    """The parts that know phones."""

    client: AdbClient
    watcher: DeviceWatcher
    fleet: Fleet
    aliases: Aliases
    tunnels: TunnelKeeper
    gates: ThermalGates
    power: PowerConfig
    switches: Switchboard
    series: FleetReadings
    server: AdbServer | None  # the farm's own

    def leave_adb(self) -> None:
        """Sessions continue without this daemon: its adb server does so too, and the next daemon takes it over."""
        if self.server is not None:
            self.server.keep_running()

    def use(self, config: FarmConfig) -> None:
        """Judge, probe, tend and adopt by it from now on."""
        self.gates.use(config.heat)
        self.fleet.use(config.adopt, config.probe, config.health, config.battery, config.recovery)
        self.fleet.rollouts.use(config.rollout)
        self.aliases.use(config.aliases)

    def unresolved_names(self, config: FarmConfig) -> list[str]:
        """Names in the configuration that no device, alias or program has; one line each."""
        keys = {key for view in self.fleet.views() if view.adopted for key in (view.name, *view.aliases)}
        words = {
            word
            for view in self.fleet.views()
            if view.identity is not None
            for word in (*view.aliases, *aliases_of(view.identity, view.name, view.labels))
        }
        return list(unresolved_names(config, keys and keys | self.aliases.selectors().keys(), words))

    async def read_conditions(self, serial: str) -> dict[str, Any]:
        """Fields of farm.measure.conditions.PhoneCondition: the phone's own, its hub's, and what probes found wrong.

        Raises:
            FarmError: the phone did not answer, or is forgotten.
        """
        self.fleet.probes.pause(serial, self.fleet.view(serial).name)
        moment, view = await read_conditions(self.client, serial), self.fleet.view(serial)
        disturbed = "; ".join(each.cause for each in view.findings if each.kind in DISTURBING)
        return moment | {"neighbours": self.gates.busy_beside(view, self.fleet.views()), "disturbed": disturbed}

    async def check_usb(self) -> list[Diagnosis]:
        """Findings about the adb server, hubs, places, permissions and cables, for `farm doctor`."""
        found = await usb_findings(self.power, self.switches, self.fleet.views(), self.watcher.devices or ())
        found += judge_phones(await asyncio.to_thread(phones_on_usb, Path(self.fleet.usb.sysfs)))
        try:
            await self.client.version()
        except FarmError as error:
            found.append(of_error("adb server", FAIL, error))
        return found


async def open_phones(
    config: FarmConfig,
    stack: contextlib.AsyncExitStack,
    persistence: Persistence,
    bundles: BundleLibrary,
    toolchains: Toolchains,
    checker: Checker,
    problems: Problems,
) -> Phones:
    """Build everything up to the fleet; no phone appears before the fleet runs.

    Raises:
        AdbNotInstalled: the farm should run adb, and there is none.
    """
    binary = await _adb_of(config.adb)
    server = None
    if (config.adb.manage or config.adb.service) and binary is not None:
        kind: type[AdbServer] = ManagedAdbServer if config.adb.service else AdbServer
        folder = config.state_dir / "adb"
        server = kind(binary, config.adb_socket, folder, usb=config.adb.usb)
        stack.push_async_callback(server.stop)
    client = AdbClient(config.adb_socket)
    watcher = DeviceWatcher(
        client,
        server=server,
        own_version=binary.version if binary else 0,
        on_event=problems.of_adb(persistence.events),
    )
    gates, switches = ThermalGates(config.heat), Switchboard(config.power, config.state_dir / "ports-off")
    store = persistence.store
    rules = FleetConfig(
        config.adopt,
        config.probe,
        gates=gates,
        health=config.health,
        battery=config.battery,
        recovery=config.recovery,
        power=switches,
        usb=config.usb,
    )
    rollouts = Rollouts(toolchains.for_abi, bundles.list, store.rollouts, persistence.events, config.rollout)
    fleet = Fleet(
        client, watcher, rollouts, checker, store.devices, persistence.events, rules,
        recoveries=store.recoveries, batteries=store.batteries, wall=store.now,
    )  # fmt: skip
    if persistence.lab.own:
        fleet.host_with = partial(_host_with, persistence.lab)
    problems.sources += (fleet.usb_faults.problems, switches.problems)
    series = FleetReadings(lambda: store.now().timestamp())
    fleet.probes.on_reading = series.add
    aliases = Aliases(fleet, store.aliases, config.aliases)
    tunnels = TunnelKeeper(client, watcher, TunnelLedger(config.state_dir / "adb" / "tunnels.json"))
    return Phones(client, watcher, fleet, aliases, tunnels, gates, config.power, switches, series, server)


async def _host_with(lab: LabView, identity: DeviceIdentity, starting: bool) -> str:
    """See `Fleet.host_with`."""
    return host_with(await lab.look(), lab.own, identity, starting=starting)


async def _adb_of(config: AdbConfig) -> AdbBinary | None:
    """The adb program; a farm on another program's server can do without."""
    try:
        return await asyncio.to_thread(find_adb, Path(config.binary) if config.binary else None)
    except AdbNotInstalled:
        if config.manage or config.binary:
            raise
        return None
