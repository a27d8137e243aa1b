"""Batteries: stores each phone's days, and keeps its charge within the window where the phone permits it.

`battery_policy` (pure) decides whether a phone should charge and what its daily readings mean. `BatteryController`
notes each probe, stores the days and switches charging through `charge.sh`; the phone's own timer restores charging.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from farm.adb.client import AdbClient
from farm.common.errors import FarmError
from farm.common.events import EventLog
from farm.common.tasks import end_tasks
from farm.devices.agent import Agent
from farm.devices.battery_policy import (
    BatteryConfig,
    Window,
    battery_findings,
    charges,
    joined,
    swelling,
    with_reading,
)
from farm.devices.health.health_rules import HealthConfig
from farm.devices.server.phone_paths import CHARGE
from farm.model.device import Life
from farm.model.health import KEPT_DAYS, Battery, BatteryDay, Finding, Health

if TYPE_CHECKING:
    from farm.store.devices import BatteryTable

SAVE_EVERY_S = 600.0  # a day's figures change slowly; a crash of the daemon loses no more than that
HELD_S = 3600.0  # then a phone charges again by itself: it must not run empty when the farm is gone
RENEW_S = 1200.0
SWITCH_TIMEOUT_S = 15.0
END_TIMEOUT_S = 5.0  # of a daemon that stops; the phone's own timer does what was not done by then
SHOWN_DAYS = 14

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatteryReport:
    """The known state of one phone's battery."""

    battery: Battery | None  # the latest reading
    days: tuple[BatteryDay, ...]
    window: Window
    held: str  # the charger's switch while farm holds charging back
    refused: str  # why the phone does not let it
    signs: tuple[str, ...]  # of swelling


@dataclass(slots=True)
class _BatteryState:
    days: list[BatteryDay] = field(default_factory=list)
    loaded: bool = False  # the stored days were read; before, `days` are from this daemon's probes only
    ended: list[BatteryDay] = field(default_factory=list)  # days that are over and not yet saved
    saved: BatteryDay | None = None
    saved_at_s: float = float("-inf")
    node: str = ""  # of the charger's switch while charging is held back
    boot: str | None = None  # in which boot the phone was asked whether it is held; None: it was not
    asked_at_s: float = float("-inf")  # when it was last asked to hold its charging back
    refused: str = ""  # why the phone does not let us


class BatteryController:
    """One per fleet. Used from the event loop's thread."""

    def __init__(
        self,
        client: AdbClient,
        events: EventLog,
        config: BatteryConfig,
        health: HealthConfig,
        every_s: float,
        table: BatteryTable,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`every_s`: how often it looks at the probes' readings."""
        self._client = client
        self._events = events
        self._config = config
        self._health = health
        self._every_s = every_s
        self._table = table
        self._monotonic = monotonic
        self._wall = wall
        self._devices: WeakKeyDictionary[Agent, _BatteryState] = WeakKeyDictionary()

    def use(self, config: BatteryConfig, health: HealthConfig, every_s: float) -> None:
        """Tend by this from the next look on; a phone that is held back and should not be any more is let go."""
        self._config, self._health, self._every_s = config, health, every_s

    def findings(self, agent: Agent, now: Health) -> Iterable[Finding]:
        """Count one more probe of a phone; returns the battery's findings."""
        known = self._devices.setdefault(agent, _BatteryState())
        self._note(known, now.battery)
        return battery_findings(now.battery, known.days, self._health.worn_percent, self._health.worn_cycles)

    async def report(self, agent: Agent) -> BatteryReport:
        """The known state of a phone's battery, for people."""
        known = self._devices.get(agent) or _BatteryState()
        battery = agent.health.battery if agent.health else None
        all_days = (
            known.days if known.loaded else joined(await self._table.read(self._table.days, agent.serial), known.days)
        )
        signs = swelling(battery, all_days) if battery else ()
        days = tuple(all_days[-SHOWN_DAYS:])
        return BatteryReport(battery, days, self._config.window, known.node, known.refused, signs)

    async def moved(self, serial: str, to: str) -> None:
        """Adb lists the phone under another serial from now on."""
        await self._table.change_serial(serial, to)

    async def run(self, agents: Callable[[], Iterable[Agent]]) -> None:
        """Until cancelled; then charging continues everywhere, and every day is kept as it is by then."""
        try:
            while True:
                await asyncio.sleep(self._every_s)
                for agent in tuple(agents()):
                    await self.update(agent)
        finally:
            ending = [asyncio.create_task(self._end(each)) for each in tuple(agents()) if each in self._devices]
            if ending:
                _, pending = await asyncio.wait(ending, timeout=END_TIMEOUT_S)
                await end_tasks(*pending)

    async def update(self, agent: Agent) -> None:
        """Keep a phone's latest day, and hold back or allow its charging if it is time for that. Never raises."""
        known = self._devices.get(agent)
        if known is None or not agent.state.adopted:
            return
        try:
            await self._load(agent, known)
            await self._save(agent, known)
        except FarmError as error:  # the store's; the phone is cared for all the same
            log.info("%s: the days of its battery: %s", agent.name, error)
        except Exception:
            log.exception("%s: a bug in farm while it kept its battery's days", agent.name)
        try:
            await self._switch(agent, known)
        except FarmError as error:
            log.info("%s: its battery: %s", agent.name, error)
        except Exception:
            log.exception("%s: a bug in farm while it cared for its battery", agent.name)

    async def allow(self, agent: Agent) -> None:
        """Charging continues, if farm has held it back and the phone says so; else it stays held. Never raises.

        A phone that cannot be reached, or does not obey, allows it by itself when its time is over.
        """
        known = self._devices.get(agent)
        if known is None or not known.node:
            return
        try:
            answer = await self._ask(agent, "allow")
        except FarmError as error:
            answer = str(error)
        if answer.partition(" ")[0] in ("allowed", "nothing"):
            self._set_held(agent, known, "")
        else:
            log.info("%s: its charging is still held back: %s", agent.name, answer)

    async def _end(self, agent: Agent) -> None:
        known = self._devices[agent]
        await self.allow(agent)
        try:
            await self._save(agent, known, at_once=True)
        except FarmError as error:
            log.info("%s: the last figures of its battery are lost: %s", agent.name, error)

    def _note(self, known: _BatteryState, now: Battery) -> None:
        """Take a reading into its day; a day that ends now is still to be saved."""
        today = self._wall().date().isoformat()
        if not known.days or known.days[-1].day != today:
            known.ended += known.days[-1:] if known.days and known.days[-1] != known.saved else []
            known.days.append(BatteryDay(today))
            del known.days[:-KEPT_DAYS]
        known.days[-1] = with_reading(known.days[-1], now)

    async def _load(self, agent: Agent, known: _BatteryState) -> None:
        """The days before this daemon's. In a thread: a database may be slow, and all phones wait for the loop."""
        if not known.loaded:
            kept = await self._table.in_thread(self._table.days, agent.serial)
            known.days, known.loaded = joined(kept, known.days), True

    async def _save(self, agent: Agent, known: _BatteryState, *, at_once: bool = False) -> None:
        if not known.loaded:
            return  # a day that began before this daemon would lose its morning
        while known.ended:
            await self._table.save(agent.serial, known.ended[0])
            del known.ended[0]
        day, now_s = known.days[-1], self._monotonic()
        if day == known.saved or (now_s - known.saved_at_s < SAVE_EVERY_S and not at_once):
            return
        await self._table.save(agent.serial, day)
        known.saved, known.saved_at_s = day, now_s

    async def _switch(self, agent: Agent, known: _BatteryState) -> None:
        if self._config.window is Window.OFF and known.node:  # it was on until the configuration was read again
            await self.allow(agent)
        if self._config.window is Window.OFF or agent.state.life is not Life.READY:
            return
        if agent.health is None or not agent.health_at:
            return  # what it was before it went away decides nothing
        if known.boot != agent.health.boot_id:
            # A daemon before this one may have held it; a reboot lets it go.
            answer, _, node = (await self._ask(agent, "state")).partition(" ")
            known.boot = agent.health.boot_id
            self._set_held(agent, known, node if answer == "held" else "")
        wanted = charges(agent.health.battery, self._config, held_back=bool(known.node))
        due = self._monotonic() - known.asked_at_s >= RENEW_S
        if wanted:
            await self.allow(agent)
        elif (wanted is False or known.node) and (due or not (known.node or known.refused)):
            known.asked_at_s = self._monotonic()
            answer, _, node = (await self._ask(agent, f"hold {HELD_S:.0f}")).partition(" ")
            if answer == "held":
                known.refused = ""
                self._set_held(agent, known, node)
            elif answer != known.refused:
                known.refused = answer
                reason = {
                    "no-root": "only root may stop its charging",
                    "no-switch": "its charger has no switch that farm knows",
                }.get(answer, f"its charger's switch does not obey: {node}")
                self._events.publish("battery.refused", agent.name, reason=reason)

    async def _ask(self, agent: Agent, what: str) -> str:
        result = await self._client.shell(agent.serial, f"sh {CHARGE} {what}", timeout_s=SWITCH_TIMEOUT_S)
        return result.text.strip()

    def _set_held(self, agent: Agent, known: _BatteryState, node: str) -> None:
        if bool(node) != bool(known.node):
            percent = agent.health.battery.percent if agent.health else None
            self._events.publish("battery.held" if node else "battery.charges", agent.name, percent=percent, node=node)
        known.node = node
