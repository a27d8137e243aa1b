"""The way to the phones: adb's server and client, the watcher, the fleet over it, keys they answer to, and tunnels."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.adb.client import AdbClient
from farm.adb.errors import AdbNotInstalled
from farm.adb.kept import KeptAdbServer
from farm.adb.program import AdbBinary, find_adb
from farm.adb.server import AdbServer
from farm.adb.tunnels import TunnelLedger
from farm.adb.watch import DeviceWatcher
from farm.config import AdbConfig, FarmConfig
from farm.control.verbs.usb_doctor import usb_findings
from farm.core.adoption import rules_of
from farm.core.doctor_findings import Finding
from farm.core.health_rules import DISTURBING
from farm.core.labels import aliases_of
from farm.core.power_policy import PowerConfig
from farm.daemon.dangling import dangling
from farm.daemon.memory import Memory
from farm.daemon.problems import Problems
from farm.fleet.aliases import Aliases
from farm.fleet.care import CareConfig
from farm.fleet.checker import Checker
from farm.fleet.fleet import Fleet, FleetConfig
from farm.fleet.gates import Gates
from farm.fleet.probe.moment import read_conditions
from farm.fleet.series import FleetSeries
from farm.fleet.switchboard import Switchboard
from farm.fleet.tunnels import TunnelKeeper
from farm.fleet.usb import Topology
from farm.jobs.toolchains import Toolchains


@dataclass(frozen=True, slots=True)
class Phones:
    """The parts that know phones."""

    client: AdbClient
    watcher: DeviceWatcher
    fleet: Fleet
    aliases: Aliases
    tunnels: TunnelKeeper
    gates: Gates
    power: PowerConfig
    switches: Switchboard
    series: FleetSeries
    server: AdbServer | None  # the farm's own

    def leave_adb(self) -> None:
        """Sessions go on without this daemon: its adb server does so too, and the next daemon takes it over."""
        if self.server is not None:
            self.server.leave()

    def use(self, config: FarmConfig) -> None:
        """Judge, probe, tend and adopt by it from now on."""
        self.gates.use(config.heat)
        self.fleet.use(rules_of(config.adopt), config.probe, config.health, config.battery, config.recovery)
        self.aliases.use(config.aliases)

    def dangling(self, config: FarmConfig) -> list[str]:
        """What of the configuration points at nothing."""
        keys = {key for view in self.fleet.views() if view.adopted for key in (view.name, *view.aliases)}
        words = {
            word
            for view in self.fleet.views()
            if view.identity is not None
            for word in (*view.aliases, *aliases_of(view.identity, view.name, view.labels))
        }
        return list(dangling(config, keys and keys | self.aliases.selectors().keys(), words))

    async def look(self, serial: str) -> dict[str, Any]:
        """A phone's condition (fields of farm.measure.conditions.Moment): its own, its hub's, what probes found wrong.

        Raises:
            FarmError: the phone did not answer, or is forgotten.
        """
        self.fleet.probes.hush(serial, self.fleet.view(serial).name)
        moment, view = await read_conditions(self.client, serial), self.fleet.view(serial)
        disturbed = "; ".join(each.what for each in view.findings if each.kind in DISTURBING)
        return moment | {"neighbours": self.gates.busy_beside(view, self.fleet.views()), "disturbed": disturbed}

    async def look_at_usb(self) -> list[Finding]:
        """What `farm doctor` should say of hubs, places and permissions."""
        return await usb_findings(self.power, self.switches, self.fleet.views(), self.watcher.devices or ())


async def open_phones(
    config: FarmConfig,
    stack: contextlib.AsyncExitStack,
    memory: Memory,
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
        kind: type[AdbServer] = KeptAdbServer if config.adb.service else AdbServer
        folder = config.state_dir / "adb"
        server = kind(binary, config.adb_socket, folder, usb=config.adb.usb)
        stack.push_async_callback(server.stop)
    client = AdbClient(config.adb_socket)
    watcher = DeviceWatcher(
        client,
        server=server,
        own_version=binary.version if binary else 0,
        on_news=problems.of_adb(memory.events),
    )
    gates, switches = Gates(config.heat), Switchboard(config.power, config.state_dir / "dark-ports")
    store, care = memory.store, CareConfig(config.recovery.per_day(), switches)
    topology = Topology(config.usb.places, Path(config.usb.sysfs))
    rules = FleetConfig(
        rules_of(config.adopt),
        config.probe,
        gates=gates,
        health=config.health,
        battery=config.battery,
        care=care,
        topology=topology,
    )
    fleet = Fleet(
        client,
        watcher,
        toolchains,
        checker,
        store.devices,
        memory.events,
        rules,
        recoveries=store.recoveries,
        batteries=store.batteries,
    )
    problems.sources += (fleet.usb_faults.problems, switches.problems)
    series = FleetSeries()
    fleet.probes.heard = series.add
    aliases = Aliases(fleet, store.aliases, config.aliases)
    tunnels = TunnelKeeper(client, watcher, TunnelLedger(config.state_dir / "adb" / "tunnels.json"))
    return Phones(client, watcher, fleet, aliases, tunnels, gates, config.power, switches, series, server)


async def _adb_of(config: AdbConfig) -> AdbBinary | None:
    """The adb program; a farm on somebody else's server can do without."""
    try:
        return await asyncio.to_thread(find_adb, Path(config.binary) if config.binary else None)
    except AdbNotInstalled:
        if config.manage or config.binary:
            raise
        return None
