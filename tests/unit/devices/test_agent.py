"""The agent when its helpers fail in ways nobody planned; phones are played by functions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from farm.adb.client import AdbClient
from farm.adb.errors import AdbTimeout
from farm.bundle.model import Bundle
from farm.common.errors import PhoneError, ProtocolError
from farm.devices import agent
from farm.devices.agent import Agent
from farm.devices.agent_work import AgentContext, CleanupTasks
from farm.devices.health.probe_round import ProbeRound
from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.recovery import RecoveryAction, RecoveryContext
from farm.devices.lifecycle.state import LifecycleState
from farm.devices.power.power import PowerSwitch
from farm.devices.server.rpc_server import RunningServer
from farm.model.device import Life, UsbPlace
from farm.model.identity import DeviceIdentity
from tests.support.waiting import HANG_S

STARTING = LifecycleState(Life.STARTING, adopted=True, identified=True, generation=5)


async def for_ever(*_: object, **__: object) -> Any:
    await asyncio.Event().wait()


class Phone:
    """A client whose calls do what a test says."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self.shell = self.open_shell = call


class Patient:
    async def check(self, device: str, bundle: Bundle) -> tuple[bool, str]:
        return cast("tuple[bool, str]", await for_ever())


class Watcher:
    """The fleet's part: remembers every life and reason it was told of."""

    def __init__(self) -> None:
        self.seen: list[tuple[Life, str]] = []
        self.left_over: list[Mapping[str, int]] = []
        self.climbs: list[LifecycleState] = []
        self.external_cause, self.blamed = "", 0
        self.host_trouble = ""  # what `blame` finds
        self.host = ""  # why another host has the phone
        self.news = asyncio.Event()

    def identified(self, agent: Agent, identity: DeviceIdentity) -> bool:
        return True

    async def host_with(self, identity: DeviceIdentity, starting: bool) -> str:
        return self.host

    def changed(self, agent: Agent) -> None:
        self.seen.append((agent.state.life, agent.state.reason))
        self.news.set()

    async def find_external_cause(self, agent: Agent, since_s: float) -> None:
        self.external_cause = self.host_trouble
        self.blamed += 1

    def in_hands(self, agent: Agent) -> bool:
        return False

    def outlived(self, _agent: Agent) -> str:
        return ""

    async def bundle_for(self, agent: Agent) -> Bundle | None:
        return None

    def context_of(self, agent: Agent) -> RecoveryContext:
        return RecoveryContext(external_cause=self.external_cause)

    def recovery_changed(self, agent: Agent, before: LifecycleState) -> None:
        self.climbs.append(before)

    def pushing(self, agent: Agent, progress: object) -> None:
        pass

    def tidied(self, agent: Agent, done: Mapping[str, int]) -> None:
        self.left_over.append(done)

    def repaired(self, agent: Agent, files: int) -> None:
        pass

    async def until(self, life: Life) -> str:
        """Wait for that life; returns its reason."""
        async with asyncio.timeout(HANG_S):
            while life not in (reasons := dict(self.seen)):
                self.news.clear()
                await self.news.wait()
        return reasons[life]


@asynccontextmanager
async def agent_of(
    call: Callable[..., Awaitable[Any]], state: LifecycleState, power: PowerSwitch | None = None
) -> AsyncIterator[tuple[Agent, Watcher]]:
    watcher = Watcher()
    context = AgentContext(cast(AdbClient, Phone(call)), watcher, Patient(), watcher, watcher, watcher, power=power)
    agent = Agent("S1", "unit", context, state)
    agent.identity = DeviceIdentity(abi="arm64-v8a")
    agent.server = RunningServer(5000, "b" * 64, "secret")
    try:
        yield agent, watcher
    finally:
        await agent.close()


@pytest.mark.parametrize("life", [Life.IDENTIFYING, Life.STARTING])
async def test_a_phone_of_another_host_is_left_alone_and_asked_about_again(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server there goes on: nothing runs on the phone but what reads its identity."""
    monkeypatch.setattr(agent, "read_identity", lambda *_: asyncio.sleep(0, {}))
    monkeypatch.setattr(agent, "identify", lambda _: DeviceIdentity(abi="arm64-v8a"))
    monkeypatch.setattr(agent, "back_off_s", lambda _: 0.0)
    ran: list[object] = []

    async def note(*call: object, **_: object) -> str:
        ran.append(call)
        return ""

    begun = LifecycleState(Life.OFFLINE, adopted=True)
    if life is Life.STARTING:
        begun = LifecycleState(Life.PROVISIONING, adopted=True, identified=True, generation=5)
    async with agent_of(note, begun) as (phone, watcher):
        watcher.host = "host lab1 has the same phone, as a"
        phone.on_event(
            m.Provisioned(5, "b" * 64, adoptable=False) if life is Life.STARTING else m.Listed(m.LinkState.USABLE)
        )
        assert await watcher.until(Life.RECOVERING) == watcher.host
        assert phone.withheld == watcher.host
        assert ran == []
        watcher.host = ""
        await watcher.until(Life.PROVISIONING)
        assert life is Life.STARTING or phone.withheld == ""


@pytest.mark.parametrize("error", [ProtocolError("adb said nonsense"), ValueError("nonsense")])
async def test_a_follower_that_fails_is_a_lost_link_not_silence(error: Exception) -> None:
    async def nonsense(*_: object, **__: object) -> None:
        raise error

    async with agent_of(nonsense, STARTING) as (agent, watcher):
        agent.on_event(m.ServerStarted(5))
        assert "nonsense" in await watcher.until(Life.PROVISIONING)


@pytest.mark.parametrize(("trouble", "acted"), [("", True), ("the adb server does not answer", False)])
async def test_nobody_acts_on_a_silent_phone_before_its_host_was_asked(
    trouble: str, acted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: object, **__: object) -> None:
        raise AdbTimeout("no answer")

    monkeypatch.setattr(agent, "back_off_s", lambda _: 0.0)
    async with agent_of(silent, LifecycleState(adopted=True)) as (phone, fleet):
        fleet.host_trouble = trouble
        phone.on_event(m.Listed(m.LinkState.USABLE))
        async with asyncio.timeout(HANG_S):
            while fleet.blamed < 4 and not fleet.climbs:
                fleet.news.clear()
                await fleet.news.wait()
        assert (bool(fleet.climbs), phone.state.progress.spent != ()) == (acted, acted)


async def test_a_server_that_started_meanwhile_is_not_blamed_for_a_phone_that_did_not_answer() -> None:
    async def silent(serial: str, command: str, **_: object) -> None:
        if agent.state.life is Life.STARTING:
            agent.on_event(m.ServerStarted(5))
        if "rpc_supervise" in command:
            await for_ever()
        raise AdbTimeout("no answer")

    async with agent_of(silent, STARTING) as (agent, _):
        client = cast(AdbClient, Phone(silent))
        await ProbeRound(client, lambda: (agent,), lambda _: None).read(agent)
        (told,) = (step for step in agent.transitions if "LinkLost" in step)
        assert told.endswith("[]")  # nothing came of it


async def test_a_probe_that_cannot_be_shown_end_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise ValueError("no such sensor")

    async with agent_of(broken, STARTING) as (agent, _):
        await ProbeRound(cast(AdbClient, Phone(broken)), lambda: (agent,), lambda _: None).read(agent)
        assert agent.state == STARTING
    assert "no such sensor" in caplog.text


async def test_a_farewell_to_a_phone_that_is_let_go_fails_as_an_error() -> None:
    ready = LifecycleState(Life.READY, adopted=True, identified=True, generation=5)
    async with agent_of(for_ever, ready) as (agent, watcher):
        agent.on_event(m.Unadopted(clean=True))
        await watcher.until(Life.NEW)
        waiting = asyncio.create_task(agent.finish_cleanup())
        await asyncio.sleep(0)
        await agent.close()
        with pytest.raises(PhoneError, match="went away"):
            await waiting


async def test_a_phone_that_is_away_is_not_rebooted() -> None:
    async with agent_of(for_ever, LifecycleState(adopted=True)) as (agent, watcher):
        with pytest.raises(PhoneError, match="cannot be rebooted: it is gone"):
            await agent.reboot("ann wants it rebooted")
        assert watcher.climbs == []


async def test_whoever_orders_a_reboot_hears_that_the_phone_did_not_answer() -> None:
    async def silent(*_: object, **__: object) -> None:
        raise AdbTimeout("no answer")

    ready = LifecycleState(Life.READY, adopted=True, identified=True, generation=5)
    async with agent_of(silent, ready) as (agent, watcher):
        with pytest.raises(AdbTimeout, match="no answer"):
            await agent.reboot("ann wants it rebooted")
        await watcher.until(Life.RECOVERING)
        assert [each.progress.under_way is None for each in watcher.climbs] == [True, False]


class SlowSwitch:
    """A port that needs more time than a farewell."""

    async def off(self, place: UsbPlace) -> None:
        await asyncio.sleep(0.1)

    async def on(self, place: UsbPlace) -> None:
        await asyncio.sleep(0)


async def test_a_power_cycle_takes_as_long_as_its_switch_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CleanupTasks.add, "__defaults__", (0.01,))  # its limit_s
    monkeypatch.setattr("farm.devices.power.power.OFF_S", 0.0)
    away = LifecycleState(Life.OFFLINE, adopted=True, identified=True, generation=5)
    async with agent_of(for_ever, away, SlowSwitch()) as (agent, _):
        agent.place = UsbPlace("1-4", 2, "1-4.2")
        agent.on_event(m.ActionOrdered(RecoveryAction.POWER_CYCLE, "ann wants its power cycled"))
        await asyncio.sleep(0)  # its work begins
        await agent.finish_cleanup()
        assert not [step for step in agent.transitions if "ActionFailed" in step]


async def test_what_watchers_get_wrong_quarantines_the_phone_and_reaches_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with agent_of(for_ever, STARTING) as (agent, watcher):

        def fail(_: Agent) -> None:
            raise RuntimeError("a subscriber's bug")

        watcher.changed = fail  # type: ignore[method-assign,assignment]
        agent.on_event(m.ServerStarted(5))
        assert agent.state.life is Life.QUARANTINED
        assert "a subscriber's bug" in agent.state.reason
    assert "ServerStarted(generation=5)" in caplog.text


class OneBundle:
    async def bundle_for(self, agent: Agent) -> Bundle | None:
        return Bundle("one", "c" * 64, "arm64-v8a", (), Path("/nowhere"), "default", (), "0.27", False)


async def test_a_bundle_on_its_way_is_announced_until_the_phone_has_it_or_lost_it() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(*_: object, **__: object) -> None:
        asked.set()
        await answer.wait()
        raise AdbTimeout("no answer")

    watcher = Watcher()
    state = LifecycleState(Life.NEW, identified=True)
    agent = Agent(
        "S1",
        "unit",
        AgentContext(cast(AdbClient, Phone(slow)), OneBundle(), Patient(), watcher, watcher, watcher),
        state,
    )
    agent.identity = DeviceIdentity(abi="arm64-v8a")
    try:
        agent.on_event(m.PlainEvent.ADOPTED)
        async with asyncio.timeout(HANG_S):
            await asked.wait()
        assert agent.installing == "c" * 64
        answer.set()
        await watcher.until(Life.RECOVERING)
        assert agent.installing == ""
    finally:
        await agent.close()


async def test_a_reboot_that_is_overtaken_before_it_began_says_so_at_once() -> None:
    ready = LifecycleState(Life.READY, adopted=True, identified=True, generation=5)
    async with agent_of(for_ever, ready) as (agent, _):
        reboot = asyncio.create_task(agent.reboot("ann wants it rebooted"))
        await asyncio.sleep(0)
        assert agent.state.progress.under_way is not None
        agent.on_event(m.QuarantineOrdered("it smokes"))
        async with asyncio.timeout(HANG_S):
            with pytest.raises(PhoneError, match="it smokes"):
                await reboot
