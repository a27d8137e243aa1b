"""Probes every device in turn, evenly spread: its health, the one temperature, and whether it answers at all.

A phone that hangs keeps one task of its own for as long as it may, never the others': it takes one of a few places for
`SLOW_S`, then only waits. A section in which a phone gets stuck twice running (a driver that does not answer, not a
busy phone) is left out for a while: each try would leave one more stuck process on it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from farm.adb.client import AdbClient
from farm.adb.errors import AdbTimeout
from farm.core import lifecycle_messages as m
from farm.core.device import Life
from farm.core.errors import FarmError
from farm.core.health import Health
from farm.core.labels import of_model
from farm.core.sensors import SensorPolicy, counted, one_temperature
from farm.fleet.agent import Agent
from farm.fleet.probe.command import SECTIONS
from farm.fleet.probe.read import READ_TIMEOUT_S, Probed, probe

PROBE_EVERY_S = 10.0  # per device: a phone under full load warms by less than 5 °C meanwhile
ANSWER_TIMEOUT_S = 5.0  # for a command that does nothing; a phone under full load takes tenths of a second
AT_ONCE = 8  # shells of this round on the adb server's one thread
SLOW_S = 2.0  # then a probe is taken for stuck: it makes room, and whether the phone answers at all is asked
LEFT_OUT_S = 600.0
HUSHED_S = 60.0  # a measurement looks at the phone itself before and after each try; most tries are shorter
UNSEEN_S = 180.0  # for no measurement is a phone left unwatched for longer: nobody else notices that it burns
_WORTH_PROBING = frozenset({Life.READY, Life.QUARANTINED, Life.RECOVERING})
_NO_POLICY = SensorPolicy()

log = logging.getLogger(__name__)


class ProbeRound:
    """Keeps the health of each agent fresh."""

    def __init__(
        self,
        client: AdbClient,
        agents: Callable[[], tuple[Agent, ...]],
        changed: Callable[[Agent], None],
        *,
        every_s: float = PROBE_EVERY_S,
        timeout_s: float = READ_TIMEOUT_S,
        policies: Mapping[str, SensorPolicy] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`policies`: what counts, by the phone's model."""
        self._client = client
        self._agents = agents
        self._changed = changed
        self._every_s = every_s
        self._timeout_s = timeout_s
        self._policies = policies or {}
        self._monotonic = monotonic
        self._places = asyncio.Semaphore(AT_ONCE)
        self.failed: Counter[str] = Counter()  # probes that told nothing, by the device's name
        self._under_way: set[Agent] = set()
        self._left_out: WeakKeyDictionary[Agent, dict[str, float]] = WeakKeyDictionary()  # section -> until when
        self._stuck: WeakKeyDictionary[Agent, str] = WeakKeyDictionary()  # in which section at its last probe
        self._hushed: dict[str, tuple[float, str]] = {}  # by serial: until when, and for whom of `turn`
        self._tasks: set[asyncio.Task[None]] = set()
        self.turn: Callable[[str], str] = lambda _: ""  # who has the device of that name, each time another; "" nobody
        self.heard: Callable[[str, Health, float | None], None] = lambda *_: None  # serial, what counts, TEMP

    def use(self, every_s: float, policies: Mapping[str, SensorPolicy]) -> None:
        """Probe so often, and count this, from the next probe on."""
        self._every_s, self._policies = every_s, policies

    def hush(self, serial: str, name: str) -> None:
        """Something is timed on the device: its turns are skipped for `HUSHED_S`, or until it is given back.

        One that was not probed for `UNSEEN_S` is probed all the same.
        """
        self._hushed[serial] = self._monotonic() + HUSHED_S, self.turn(name)

    async def run(self) -> None:
        """Go round until cancelled."""
        try:
            while True:
                agents = self._agents()
                if not agents:
                    await asyncio.sleep(self._every_s)
                for agent in agents:
                    await asyncio.sleep(self._every_s / len(agents))
                    if self._worth(agent):
                        self._begin(agent)
        finally:
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _worth(self, agent: Agent) -> bool:
        if agent.device is None or not agent.state.adopted or agent.state.life not in _WORTH_PROBING:
            return False
        now = self._monotonic()
        until, whose = self._hushed.get(agent.serial, (0.0, ""))
        hushed = until > now and whose and whose == self.turn(agent.name)
        return not hushed or now - agent.health_at >= UNSEEN_S

    def _begin(self, agent: Agent) -> None:
        if agent in self._under_way:
            return  # its last probe hangs: another one would too
        task = asyncio.create_task(self._in_turn(agent), name=f"probe {agent.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _in_turn(self, agent: Agent) -> None:
        async with self._places:
            reading = asyncio.ensure_future(self.read(agent))
            try:
                await asyncio.wait({reading}, timeout=SLOW_S)
            except asyncio.CancelledError:
                await _ended(reading)
                raise
        try:
            await reading
        finally:
            reading.cancel()

    async def read(self, agent: Agent) -> None:
        """Probe one device now. One that answers no command at all is reported lost: adb goes on listing it.

        Never raises: a thermometer that farm cannot read is no reason to stop reading the others, or to end a session.
        """
        if agent in self._under_way:
            return
        self._under_way.add(agent)
        try:
            await self._read(agent)
        except Exception:
            log.exception("%s: a bug in farm while it was probed", agent.name)
        finally:
            self._under_way.discard(agent)

    async def _read(self, agent: Agent) -> None:
        follow = agent.state.follow  # of now: a server that starts while we wait is not to blame
        reading = asyncio.create_task(
            probe(self._client, agent.serial, self._wanted(agent), timeout_s=self._timeout_s), name=f"read {agent.name}"
        )
        try:
            await asyncio.wait({reading}, timeout=SLOW_S)
            # A late probe may be one slow service: whether the phone answers at all is asked beside it.
            if _silent(reading) and not await self._answers(agent) and _silent(reading):
                self.failed[agent.name] += 1
                agent.tell(m.LinkLost(follow, "it answers no command, though adb lists it", mute=True))
                return
            self._keep(agent, await reading)
        except FarmError as error:
            self.failed[agent.name] += 1
            log.debug("%s: no health: %s", agent.name, error)  # the follower or the list will tell what is wrong
        finally:
            await _ended(reading)

    def _keep(self, agent: Agent, done: Probed) -> None:
        now = self._monotonic()
        if done.stuck_in in SECTIONS and self._stuck.get(agent) == done.stuck_in:
            log.warning("%s: reading its %s gets stuck; left out for %g s", agent.name, done.stuck_in, LEFT_OUT_S)
            self._left_out.setdefault(agent, {})[done.stuck_in] = now + LEFT_OUT_S
        self._stuck[agent] = done.stuck_in
        model = agent.identity.model if agent.identity else ""
        health = counted(done.health, of_model(self._policies, model) or _NO_POLICY)
        out = [name for name in self._left_out.get(agent, {}) if name not in health.missing]
        agent.health = replace(health, missing=(*health.missing, *out)) if out else health
        agent.health_at = now
        shown = one_temperature(health)
        agent.temperature_c, agent.temperature_of = (shown.celsius, shown.sensor) if shown else (None, "")
        agent.battery_percent = health.battery.percent
        self.heard(agent.serial, health, agent.temperature_c)
        self._changed(agent)

    def _wanted(self, agent: Agent) -> tuple[str, ...]:
        left_out = self._left_out.get(agent)
        if not left_out:
            return SECTIONS
        now = self._monotonic()
        for section in [name for name, until in left_out.items() if until <= now]:
            del left_out[section]
        return tuple(name for name in SECTIONS if name not in left_out)

    async def _answers(self, agent: Agent) -> bool:
        """Whether the phone runs a command at all; a slow `dumpsys` alone must not end anybody's session."""
        try:
            await self._client.shell(agent.serial, "true", timeout_s=min(ANSWER_TIMEOUT_S, self._timeout_s))
        except AdbTimeout:
            return False
        except FarmError as error:
            log.debug("%s: %s", agent.name, error)
        return True


def _silent(reading: asyncio.Task[Probed]) -> bool:
    """Whether a probe has not brought anything, so far or at all."""
    return not reading.done() or isinstance(reading.exception(), AdbTimeout)


async def _ended(task: asyncio.Future[Any]) -> None:
    """Cancel it, and wait until it has closed what it had open."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
