"""Cares for batteries: keeps each phone's days, and its charge within the window where the phone lets us."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol
from weakref import WeakKeyDictionary

from farm.adb.client import AdbClient
from farm.core.battery_care import BatteryConfig, BatteryDay, Window, battery_findings, charges, swelling, with_reading
from farm.core.device import Life
from farm.core.errors import FarmError
from farm.core.events import EventLog
from farm.core.health import Battery, Health
from farm.core.health_rules import Finding, HealthConfig
from farm.fleet.agent import Agent
from farm.fleet.phone_paths import CHARGE

SAVE_EVERY_S = 600.0  # a day's figures change slowly; a crash of the daemon loses no more than that
HELD_S = 3600.0  # then a phone charges again by itself: it must not run empty when the farm is gone
RENEW_S = 1200.0
SWITCH_TIMEOUT_S = 15.0
END_TIMEOUT_S = 5.0  # of a daemon that stops; the phone's own timer does what was not done by then
SHOWN_DAYS = 14

log = logging.getLogger(__name__)


class BatteryBook(Protocol):
    """The part of the store that keeps days (farm.store.batteries.BatteryTable)."""

    def days(self, serial: str) -> tuple[BatteryDay, ...]:
        """A phone's days, oldest first."""

    async def keep(self, serial: str, day: BatteryDay) -> None:
        """Insert or replace one."""

    async def moved(self, serial: str, to: str) -> None:
        """The same phone has another serial."""


class NoBook:
    """Remembers nothing: for a fleet without a store."""

    def days(self, serial: str) -> tuple[BatteryDay, ...]:  # noqa: ARG002
        """None."""
        return ()

    async def keep(self, serial: str, day: BatteryDay) -> None:
        """Nowhere."""

    async def moved(self, serial: str, to: str) -> None:
        """Nothing to move."""


@dataclass(frozen=True, slots=True)
class BatteryLook:
    """What is known of one phone's battery."""

    battery: Battery | None  # the latest reading
    days: tuple[BatteryDay, ...]
    window: Window
    held: str  # the charger's switch while farm holds charging back
    refused: str  # why the phone does not let it
    signs: tuple[str, ...]  # of swelling


@dataclass(slots=True)
class _Device:
    days: list[BatteryDay] = field(default_factory=list)
    saved: BatteryDay | None = None
    saved_at_s: float = float("-inf")
    node: str = ""  # of the charger's switch while charging is held back
    asked_at_s: float = float("-inf")  # when it was last asked to hold its charging back
    refused: str = ""  # why the phone does not let us


class BatteryCare:
    """One per fleet. Used from the event loop's thread."""

    def __init__(
        self,
        client: AdbClient,
        events: EventLog,
        config: BatteryConfig,
        health: HealthConfig,
        every_s: float,
        book: BatteryBook | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`every_s`: how often it looks at what probes have read. `book`: None remembers nothing."""
        self._client = client
        self._events = events
        self._config = config
        self._health = health
        self._every_s = every_s
        self._book = book or NoBook()
        self._monotonic = monotonic
        self._wall = wall
        self._devices: WeakKeyDictionary[Agent, _Device] = WeakKeyDictionary()

    def findings(self, agent: Agent, now: Health) -> Iterable[Finding]:
        """Take one more probe of a phone; what its days tell."""
        known = self._devices.get(agent)
        if known is None:
            known = self._devices[agent] = _Device(list(self._book.days(agent.serial)))
        today = self._wall().date().isoformat()
        if not known.days or known.days[-1].day != today:
            known.days.append(BatteryDay(today))
        known.days[-1] = with_reading(known.days[-1], now.battery)
        return battery_findings(now.battery, known.days, self._health.worn_percent, self._health.worn_cycles)

    def look(self, agent: Agent) -> BatteryLook:
        """What is known of a phone's battery, for people."""
        known = self._devices.get(agent) or _Device(list(self._book.days(agent.serial)))
        battery = agent.health.battery if agent.health else None
        signs = swelling(battery, known.days) if battery else ()
        days = tuple(known.days[-SHOWN_DAYS:])
        return BatteryLook(battery, days, self._config.window, known.node, known.refused, signs)

    async def moved(self, serial: str, to: str) -> None:
        """Adb lists the phone under another serial from now on."""
        await self._book.moved(serial, to)

    async def run(self, agents: Callable[[], Iterable[Agent]]) -> None:
        """Until cancelled; then charging goes on everywhere."""
        try:
            while True:
                await asyncio.sleep(self._every_s)
                for agent in tuple(agents()):
                    await self.tend(agent)
        finally:
            held = [agent for agent in tuple(agents()) if (known := self._devices.get(agent)) and known.node]
            if held:
                await asyncio.wait([asyncio.create_task(self.allow(each)) for each in held], timeout=END_TIMEOUT_S)

    async def tend(self, agent: Agent) -> None:
        """Keep a phone's latest day, and hold back or allow its charging if it is time for that. Never raises."""
        known = self._devices.get(agent)
        if known is None or not agent.state.adopted:
            return
        try:
            await self._save(agent, known)
            await self._switch(agent, known)
        except FarmError as error:
            log.info("%s: its battery: %s", agent.name, error)
        except Exception:
            log.exception("%s: a bug in farm while it cared for its battery", agent.name)

    async def allow(self, agent: Agent) -> None:
        """Charging goes on, if farm has held it back; a phone that cannot be told does it by itself. Never raises."""
        known = self._devices.get(agent)
        if known is None or not known.node:
            return
        try:
            await self._ask(agent, "allow")
        except FarmError as error:
            log.info("%s: it charges again by itself within %g s: %s", agent.name, HELD_S, error)
        self._tell(agent, known, "")

    async def _save(self, agent: Agent, known: _Device) -> None:
        day, now_s = known.days[-1], self._monotonic()
        if day == known.saved or now_s - known.saved_at_s < SAVE_EVERY_S:
            return
        known.saved, known.saved_at_s = day, now_s
        await self._book.keep(agent.serial, day)

    async def _switch(self, agent: Agent, known: _Device) -> None:
        if self._config.window is Window.OFF or agent.state.life is not Life.READY or agent.health is None:
            return
        wanted = charges(agent.health.battery, self._config, held_back=bool(known.node))
        due = self._monotonic() - known.asked_at_s >= RENEW_S
        if wanted:
            await self.allow(agent)
        elif (wanted is False or known.node) and (due or not (known.node or known.refused)):
            known.asked_at_s = self._monotonic()
            said, _, node = (await self._ask(agent, f"hold {HELD_S:.0f}")).partition(" ")
            if said == "held":
                known.refused = ""
                self._tell(agent, known, node)
            elif said != known.refused:
                known.refused = said
                reason = {
                    "no-root": "only root may stop its charging",
                    "no-switch": "its charger has no switch that farm knows",
                }.get(said, f"its charger's switch does not obey: {node}")
                self._events.publish("battery.refused", agent.name, reason=reason)

    async def _ask(self, agent: Agent, what: str) -> str:
        result = await self._client.shell(agent.serial, f"sh {CHARGE} {what}", timeout_s=SWITCH_TIMEOUT_S)
        return result.text.strip()

    def _tell(self, agent: Agent, known: _Device, node: str) -> None:
        if bool(node) != bool(known.node):
            percent = agent.health.battery.percent if agent.health else None
            self._events.publish("battery.held" if node else "battery.charges", agent.name, percent=percent, node=node)
        known.node = node
