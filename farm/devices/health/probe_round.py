"""Probes: one shell round trip asks a phone for its health; `ProbeRound` asks every device in turn, evenly spread.

What came before the phone got stuck is kept. A phone that hangs keeps one task of its own for as long as it may, never
the others': it takes one of `AT_ONCE` turns for `SLOW_S`, then only waits. A section in which a phone gets stuck twice
running (a driver that does not answer, not a busy phone) is left out for a while: each try would leave one more stuck
process on it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

from farm.adb.client import AdbClient
from farm.adb.errors import AdbTimeout
from farm.common.errors import FarmError
from farm.common.selector import of_model
from farm.common.tasks import BackgroundTasks, end_tasks
from farm.devices.agent import Agent
from farm.devices.health.probe.parse import SECTIONS, cut_sections, health_of, probe_command
from farm.devices.health.probe.thermal import ProbeConfig, SensorPolicy, counted
from farm.devices.lifecycle import messages as m
from farm.model.device import Life
from farm.model.health import Battery, ClusterReading, Health

READ_TIMEOUT_S = 15.0  # generous on purpose: two dumpsys calls of at most 4 s each, and no real phone was measured
MAX_OUTPUT_BYTES = 256 << 10  # twenty times what a phone with 79 zones prints
GATHER_S = 0.05  # a shell prints line by line: to wake up for each takes the processor longer than to parse them all
_MANY_BYTES = 32 << 10  # parsed beside the event loop: no phone keeps other phones waiting


async def probe(
    client: AdbClient,
    serial: str,
    sections: Collection[str] = SECTIONS,
    *,
    timeout_s: float = READ_TIMEOUT_S,
    gather_s: float = 0.0,
) -> tuple[Health, str]:
    """Probe a phone in one shell round trip: its health, and the section in which the phone got stuck ("": none).

    Sections that are not asked for are as unknown. `gather_s`: for how long output may gather before it is read; saves
    the processor's time, and answers later by that much.

    Raises:
        AdbTimeout: the phone said nothing in time.
        AdbError: the phone or the adb server did not do its part.
    """
    output = await raw_probe(client, serial, sections, timeout_s=timeout_s, gather_s=gather_s)
    if len(output) > _MANY_BYTES:
        return await asyncio.to_thread(_read, output, sections)
    return _read(output, sections)


def _read(output: bytes, sections: Collection[str]) -> tuple[Health, str]:
    parts = cut_sections(output)
    return health_of(parts, sections), "" if parts.whole else parts.last


async def raw_probe(
    client: AdbClient,
    serial: str,
    sections: Collection[str] = SECTIONS,
    *,
    timeout_s: float = READ_TIMEOUT_S,
    gather_s: float = 0.0,
) -> bytes:
    """The phone's output as it came; cut where the phone hung.

    Raises:
        AdbTimeout: the phone said nothing in time.
        AdbError: the phone or the adb server did not do its part.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    output = bytearray()
    async with await client.open_shell(serial, probe_command(sections), timeout_s=timeout_s) as stream:
        await stream.close_stdin()
        try:
            while chunk := await stream.read(timeout_s=deadline - asyncio.get_running_loop().time()):
                output += chunk[: MAX_OUTPUT_BYTES - len(output)]
                if len(output) == MAX_OUTPUT_BYTES:
                    break
                await asyncio.sleep(gather_s)
        except AdbTimeout:
            if not output:
                raise
    return bytes(output)


CONDITIONS_TIMEOUT_S = 10.0
MOMENT_SECTIONS = ("cpu", "battery", "thermal", "gpu")
_PINNED = frozenset({"performance", "powersave", "userspace"})  # governors under which a core has one clock


async def read_conditions(client: AdbClient, serial: str) -> dict[str, Any]:
    """Read them in one shell round trip; fields of farm.measure.conditions.PhoneCondition.

    Raises:
        AdbError: the phone or the adb server did not do its part.
    """
    health, _ = await probe(client, serial, MOMENT_SECTIONS, timeout_s=CONDITIONS_TIMEOUT_S)
    return condition_of(health)


def condition_of(health: Health) -> dict[str, Any]:
    """Fields of a PhoneCondition; None: unknown."""
    battery = health.battery
    clocks = [clock for cluster in health.cpu if (clock := _allowed_khz(cluster)) is not None]
    governors = sorted({each.governor for each in health.cpu if each.governor})
    governors += [f"gpu {health.gpu.governor}"] if health.gpu.governor else []  # as in the identity's clock_policy
    return {
        "temperature_c": battery.celsius,
        "throttle_status": int(health.throttle) if health.throttle is not None else None,
        "battery_percent": battery.percent,
        "charging": _charging(battery),
        "clock_hz": 1000.0 * max(clocks) if clocks else None,
        "gpu_clock_hz": float(health.gpu.max_hz) if health.gpu.max_hz else None,
        "governors": ", ".join(governors) or None,
    }


def _charging(battery: Battery) -> bool | None:
    if battery.powered_by or battery.status == "charging":
        return True
    return False if battery.status in ("discharging", "not-charging") else None


def _allowed_khz(cluster: ClusterReading) -> int | None:
    if cluster.governor in _PINNED and cluster.khz is not None:
        return cluster.khz
    return cluster.max_khz


ANSWER_TIMEOUT_S = 5.0  # for a command that does nothing; a phone under full load takes tenths of a second
AT_ONCE = 8  # shells of this round on the adb server's one thread
SLOW_S = 2.0  # then a probe is taken for stuck: it makes room, and whether the phone answers at all is asked
LEFT_OUT_S = 600.0
PAUSED_S = 60.0  # a measurement looks at the phone itself before and after each try; most tries are shorter
UNSEEN_S = 180.0  # for no measurement is a phone left unwatched for longer: nothing else would detect a fire
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
        config: ProbeConfig | None = None,
        *,
        timeout_s: float = READ_TIMEOUT_S,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._agents = agents
        self._changed = changed
        self._wall = wall
        self._config = config or ProbeConfig()
        self._timeout_s = timeout_s
        self._monotonic = monotonic
        self._turns = asyncio.Semaphore(AT_ONCE)
        self.failed: Counter[str] = Counter()  # probes that failed, by the device's name
        self._under_way: set[Agent] = set()
        self._left_out: WeakKeyDictionary[Agent, dict[str, float]] = WeakKeyDictionary()  # section -> until when
        self._stuck: WeakKeyDictionary[Agent, str] = WeakKeyDictionary()  # in which section at its last probe
        self._paused: dict[str, tuple[float, str]] = {}  # by serial: until when, and under which lease
        self._tasks = BackgroundTasks()
        # the id of the lease on the device of that name; "": not leased
        self.lease_of: Callable[[str], str] = lambda _: ""
        self.on_reading: Callable[[str, Health, float | None], None] = lambda *_: None  # serial, what counts, TEMP

    def use(self, config: ProbeConfig) -> None:
        """Probe by this configuration from the next probe on."""
        self._config = config

    def pause(self, serial: str, name: str) -> None:
        """A measurement runs on the device: its probes are skipped for `PAUSED_S`, or until it is given back.

        A phone that was not probed for `UNSEEN_S` is probed all the same.
        """
        self._paused[serial] = self._monotonic() + PAUSED_S, self.lease_of(name)

    async def run(self) -> None:
        """Go round until cancelled."""
        try:
            while True:
                agents = self._agents()
                if not agents:
                    await asyncio.sleep(self._config.every_s)
                for agent in agents:
                    await asyncio.sleep(self._config.every_s / len(agents))
                    if self._worth(agent):
                        self._begin(agent)
        finally:
            await self._tasks.end(0.0)

    def _worth(self, agent: Agent) -> bool:
        if agent.device is None or not agent.state.adopted or agent.state.life not in _WORTH_PROBING:
            return False
        now = self._monotonic()
        until, owner = self._paused.get(agent.serial, (0.0, ""))
        paused = until > now and owner and owner == self.lease_of(agent.name)
        return not paused or now - agent.health_at >= UNSEEN_S

    def _begin(self, agent: Agent) -> None:
        if agent in self._under_way:
            return  # its last probe hangs: another one would too
        self._tasks.spawn(self.read(agent, in_turn=True), f"probe {agent.name}")

    async def read(self, agent: Agent, *, in_turn: bool = False) -> None:
        """Probe one device now; `in_turn`: in one of the turns of the round.

        A phone that answers no command at all is reported lost: adb continues listing it.

        Never raises: a thermometer that farm cannot read is no reason to stop reading the rest, or to end a session.
        """
        if agent in self._under_way:
            return
        self._under_way.add(agent)
        try:
            await self._read(agent, self._turns if in_turn else nullcontext())
        except Exception:
            log.exception("%s: a bug in farm while it was probed", agent.name)
        finally:
            self._under_way.discard(agent)

    async def _read(self, agent: Agent, turn: AbstractAsyncContextManager[None]) -> None:
        async with turn:
            follow = agent.state.follow  # of now: a server that starts while we wait is not at fault
            began_s = self._monotonic()
            probing = probe(
                self._client, agent.serial, self._wanted(agent), timeout_s=self._timeout_s, gather_s=GATHER_S
            )
            reading = asyncio.create_task(probing, name=f"read {agent.name}")
            try:
                await asyncio.wait({reading}, timeout=SLOW_S)
            except asyncio.CancelledError:
                await end_tasks(reading)
                raise
        try:
            # A late probe may be one slow service: whether the phone answers at all is asked beside it.
            if _silent(reading) and not await self._answers(agent) and _silent(reading):
                self.failed[agent.name] += 1
                await agent.find_external_cause(began_s)
                agent.on_event(m.LinkLost(follow, "it answers no command, though adb lists it", mute=True))
                return
            self._keep(agent, *await reading)
        except FarmError as error:
            self.failed[agent.name] += 1
            log.debug("%s: no health: %s", agent.name, error)  # the follower or the list reports the reason
        finally:
            await end_tasks(reading)

    def _keep(self, agent: Agent, read: Health, stuck_in: str) -> None:
        now = self._monotonic()
        if stuck_in in SECTIONS and self._stuck.get(agent) == stuck_in:
            log.warning("%s: reading its %s gets stuck; left out for %g s", agent.name, stuck_in, LEFT_OUT_S)
            self._left_out.setdefault(agent, {})[stuck_in] = now + LEFT_OUT_S
        self._stuck[agent] = stuck_in
        model = agent.identity.model if agent.identity else ""
        health = counted(read, of_model(self._config.model, model) or _NO_POLICY)
        out = [name for name in self._left_out.get(agent, {}) if name not in health.missing]
        agent.health_at = now
        agent.show_health(replace(health, missing=(*health.missing, *out)) if out else health, self._wall())
        self.on_reading(agent.serial, health, agent.temperature_c)
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
        """Whether the phone runs a command at all; a slow `dumpsys` alone must not end a session."""
        try:
            await self._client.shell(agent.serial, "true", timeout_s=min(ANSWER_TIMEOUT_S, self._timeout_s))
        except AdbTimeout:
            return False
        except FarmError as error:
            log.debug("%s: %s", agent.name, error)
        return True


def _silent(reading: asyncio.Task[tuple[Health, str]]) -> bool:
    """Whether a probe has not brought anything, so far or at all."""
    return not reading.done() or isinstance(reading.exception(), AdbTimeout)
