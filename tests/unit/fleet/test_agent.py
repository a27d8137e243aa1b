"""The agent when its helpers fail in ways nobody planned; phones are played by functions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from farm.adb.client import AdbClient
from farm.adb.errors import AdbTimeout
from farm.bundle.manifest import Bundle
from farm.core import lifecycle_messages as m
from farm.core.attribution import UsbPlace
from farm.core.device import Life
from farm.core.errors import PhoneError, ProtocolError
from farm.core.identity import DeviceIdentity
from farm.core.lifecycle_state import DeviceState
from farm.core.recovery import Around, Rung
from farm.fleet.agent import Agent
from farm.fleet.checker import CheckReport
from farm.fleet.farewells import Farewells
from farm.fleet.means import Means
from farm.fleet.power import PowerSwitch
from farm.fleet.probe_round import ProbeRound
from farm.fleet.rpc_server import RunningServer
from farm.fleet.traces import Tidied

LIMIT_S = 5.0
STARTING = DeviceState(Life.STARTING, adopted=True, identified=True, generation=5)


async def for_ever(*_: object, **__: object) -> Any:
    await asyncio.Event().wait()


class Phone:
    """A client whose calls do what a test says."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self.shell = self.open_shell = call


class NoBundles:
    def for_abi(self, abi: str, platform: str | None = None) -> Bundle | None:
        return None


class Patient:
    async def check(self, device: str, bundle: Bundle) -> CheckReport:
        return cast(CheckReport, await for_ever())


class Watcher:
    """The fleet's part: remembers every life and reason it was told of."""

    def __init__(self) -> None:
        self.seen: list[tuple[Life, str]] = []
        self.left_over: list[Tidied] = []
        self.climbs: list[DeviceState] = []
        self.news = asyncio.Event()

    def identified(self, agent: Agent, identity: DeviceIdentity) -> bool:
        return True

    def changed(self, agent: Agent) -> None:
        self.seen.append((agent.state.life, agent.state.reason))
        self.news.set()

    def in_hands(self, agent: Agent) -> bool:
        return False

    def outlived(self, _agent: Agent) -> str:
        return ""

    def around(self, agent: Agent) -> Around:
        return Around()

    def climbed(self, agent: Agent, before: DeviceState) -> None:
        self.climbs.append(before)

    def pushing(self, agent: Agent, progress: object) -> None:
        pass

    def tidied(self, agent: Agent, done: Tidied) -> None:
        self.left_over.append(done)

    def repaired(self, agent: Agent, files: int) -> None:
        pass

    async def until(self, life: Life) -> str:
        """Wait for that life; returns its reason."""
        async with asyncio.timeout(LIMIT_S):
            while life not in (reasons := dict(self.seen)):
                self.news.clear()
                await self.news.wait()
        return reasons[life]


@asynccontextmanager
async def agent_of(
    call: Callable[..., Awaitable[Any]], state: DeviceState, power: PowerSwitch | None = None
) -> AsyncIterator[tuple[Agent, Watcher]]:
    watcher = Watcher()
    means = Means(cast(AdbClient, Phone(call)), NoBundles(), Patient(), watcher, watcher, watcher, power=power)
    agent = Agent("S1", "unit", means, state)
    agent.identity = DeviceIdentity(abi="arm64-v8a")
    agent.server = RunningServer(5000, "b" * 64, "secret")
    try:
        yield agent, watcher
    finally:
        await agent.close()


@pytest.mark.parametrize("error", [ProtocolError("adb said nonsense"), ValueError("nonsense")])
async def test_a_follower_that_fails_is_a_lost_link_not_silence(error: Exception) -> None:
    async def nonsense(*_: object, **__: object) -> None:
        raise error

    async with agent_of(nonsense, STARTING) as (agent, watcher):
        agent.tell(m.ServerStarted(5))
        assert "nonsense" in await watcher.until(Life.PROVISIONING)


async def test_a_server_that_started_meanwhile_is_not_blamed_for_a_phone_that_did_not_answer() -> None:
    async def silent(serial: str, command: str, **_: object) -> None:
        if agent.state.life is Life.STARTING:
            agent.tell(m.ServerStarted(5))
        if "rpc_supervise" in command:
            await for_ever()
        raise AdbTimeout("no answer")

    async with agent_of(silent, STARTING) as (agent, _):
        client = cast(AdbClient, Phone(silent))
        await ProbeRound(client, lambda: (agent,), lambda _: None).read(agent)
        (told,) = (step for step in agent.story if "LinkLost" in step)
        assert told.endswith("[]")  # nothing came of it


async def test_a_probe_that_cannot_be_shown_end_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise ValueError("no such sensor")

    async with agent_of(broken, STARTING) as (agent, _):
        await ProbeRound(cast(AdbClient, Phone(broken)), lambda: (agent,), lambda _: None).read(agent)
        assert agent.state == STARTING
    assert "no such sensor" in caplog.text


async def test_a_farewell_to_a_phone_that_is_let_go_fails_as_an_error() -> None:
    ready = DeviceState(Life.READY, adopted=True, identified=True, generation=5)
    async with agent_of(for_ever, ready) as (agent, watcher):
        agent.tell(m.Unadopted(clean=True))
        await watcher.until(Life.NEW)
        waiting = asyncio.create_task(agent.farewell())
        await asyncio.sleep(0)
        await agent.close()
        with pytest.raises(PhoneError, match="went away"):
            await waiting


async def test_a_phone_that_is_away_is_not_rebooted() -> None:
    async with agent_of(for_ever, DeviceState(adopted=True)) as (agent, watcher):
        with pytest.raises(PhoneError, match="cannot be rebooted: it is gone"):
            await agent.reboot("ann wants it rebooted")
        assert watcher.climbs == []


async def test_whoever_orders_a_reboot_hears_that_the_phone_did_not_answer() -> None:
    async def silent(*_: object, **__: object) -> None:
        raise AdbTimeout("no answer")

    ready = DeviceState(Life.READY, adopted=True, identified=True, generation=5)
    async with agent_of(silent, ready) as (agent, watcher):
        with pytest.raises(AdbTimeout, match="no answer"):
            await agent.reboot("ann wants it rebooted")
        await watcher.until(Life.RECOVERING)
        assert [each.climb.under_way is None for each in watcher.climbs] == [True, False]


class SlowSwitch:
    """A port that needs more time than a farewell."""

    async def off(self, place: UsbPlace) -> None:
        await asyncio.sleep(0.1)

    async def on(self, place: UsbPlace) -> None:
        await asyncio.sleep(0)


async def test_a_power_cycle_takes_as_long_as_its_switch_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Farewells.say, "__defaults__", (0.01,))  # its limit_s
    monkeypatch.setattr("farm.fleet.power.DARK_S", 0.0)
    away = DeviceState(Life.OFFLINE, adopted=True, identified=True, generation=5)
    async with agent_of(for_ever, away, SlowSwitch()) as (agent, _):
        agent.place = UsbPlace("1-4", 2, "1-4.2")
        agent.tell(m.Ordered(Rung.POWER_CYCLE, "ann wants its power cycled"))
        await asyncio.sleep(0)  # its work begins
        await agent.farewell()
        assert not [step for step in agent.story if "RungFailed" in step]


async def test_what_watchers_get_wrong_quarantines_the_phone_and_reaches_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with agent_of(for_ever, STARTING) as (agent, watcher):

        def fail(_: Agent) -> None:
            raise RuntimeError("a subscriber's bug")

        watcher.changed = fail  # type: ignore[method-assign,assignment]
        agent.tell(m.ServerStarted(5))
        assert agent.state.life is Life.QUARANTINED
        assert "a subscriber's bug" in agent.state.reason
    assert "ServerStarted(generation=5)" in caplog.text


class OneBundle:
    def for_abi(self, abi: str, platform: str | None = None) -> Bundle | None:
        return Bundle("one", "c" * 64, "arm64-v8a", (), Path("/nowhere"), "default", (), "0.27", False)


async def test_a_bundle_on_its_way_is_announced_until_the_phone_has_it_or_lost_it() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(*_: object, **__: object) -> None:
        asked.set()
        await answer.wait()
        raise AdbTimeout("no answer")

    watcher = Watcher()
    state = DeviceState(Life.NEW, identified=True)
    agent = Agent(
        "S1", "unit", Means(cast(AdbClient, Phone(slow)), OneBundle(), Patient(), watcher, watcher, watcher), state
    )
    agent.identity = DeviceIdentity(abi="arm64-v8a")
    try:
        agent.tell(m.Adopted())
        async with asyncio.timeout(LIMIT_S):
            await asked.wait()
        assert agent.installing == "c" * 64
        answer.set()
        await watcher.until(Life.RECOVERING)
        assert agent.installing == ""
    finally:
        await agent.close()


async def test_a_reboot_that_is_overtaken_before_it_began_says_so_at_once() -> None:
    ready = DeviceState(Life.READY, adopted=True, identified=True, generation=5)
    async with agent_of(for_ever, ready) as (agent, _):
        reboot = asyncio.create_task(agent.reboot("ann wants it rebooted"))
        await asyncio.sleep(0)
        assert agent.state.climb.under_way is not None
        agent.tell(m.Distrusted("it smokes"))
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(PhoneError, match="it smokes"):
                await reboot
