"""The round of probes: even, bounded, and no phone waits for one that hangs."""

import asyncio
from types import SimpleNamespace

import pytest

from farm.adb.errors import AdbTimeout
from farm.devices.agent import Agent
from farm.devices.health import probe_round
from farm.devices.health.probe.parse import SECTIONS, probe_command
from farm.devices.health.probe.thermal import ProbeConfig, SensorPolicy
from farm.devices.health.probe_round import LEFT_OUT_S, PAUSED_S, UNSEEN_S, ProbeRound
from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.state import LifecycleState
from farm.model.device import Life
from farm.model.health import SensorGroup
from farm.model.identity import DeviceIdentity
from tests.support.waiting import until
from tests.unit.devices.captures import capture, probe_answer

WARM = probe_answer(
    battery=capture("dumpsys_battery/honor-alt-nx1-magicos"), thermal=capture("thermalservice/pixel8a-android17")
)


class Shell:
    """What a phone's shell says, then how it goes on."""

    def __init__(self, said, then=None):
        self.pieces = [said] if said else []
        self.then = then

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        return

    async def close_stdin(self):
        return

    async def read(self, *, timeout_s):
        if self.pieces:
            return self.pieces.pop()
        return await self.then() if self.then else b""


async def for_ever():
    await asyncio.Event().wait()
    return b""


async def too_late():
    raise AdbTimeout("no answer")


class Phones:
    """A client of many phones; those in `shells` behave as said, the others are warm and well."""

    def __init__(self):
        self.shells = {}
        self.probed = []
        self.commands = []
        self.silent = set()

    async def open_shell(self, serial, command, *, timeout_s):
        self.probed.append(serial)
        self.commands.append(command)
        return self.shells.get(serial, lambda _: Shell(WARM))(command)

    async def shell(self, serial, command, *, timeout_s):
        if serial in self.silent:
            raise AdbTimeout("no answer")
        return object()


class NobodyElse:
    """A fleet whose host and hubs are well."""

    async def find_external_cause(self, agent, since_s):
        pass


def agent_of(serial, life=Life.READY, *, adopted=True):
    agent = Agent(
        serial,
        serial.lower(),
        SimpleNamespace(client=None, fleet=NobodyElse()),
        LifecycleState(life, adopted=adopted, follow=7),
    )
    agent.device = SimpleNamespace(serial=serial)
    agent.identity = DeviceIdentity(model="M1")
    return agent


def round_of(phones, agents, every_s=10.0, policies=None, **options):
    changed = []
    client, config = phones, ProbeConfig(every_s, policies or {})
    notice = lambda agent: changed.append(agent.serial)  # noqa: E731
    return ProbeRound(client, lambda: tuple(agents), notice, config, **options), changed


async def test_a_probe_sets_health_and_the_two_figures():
    agent = agent_of("S1")
    probes, changed = round_of(Phones(), [agent], monotonic=lambda: 77.0)
    await probes.read(agent)
    assert agent.health is not None
    assert (agent.temperature_c, agent.battery_percent, agent.health_at) == (46.0, 54, 77.0)
    assert changed == ["S1"]


async def test_operators_say_what_counts_for_a_model():
    agent = agent_of("S1")
    policy = SensorPolicy(ignore=("LITTLE", "BIG", "MID"), skin="battery")
    probes, _ = round_of(Phones(), [agent], policies={"m1": policy})
    await probes.read(agent)
    assert agent.health is not None
    assert (agent.temperature_c, agent.temperature_of) == (34.0, "G3D")  # the GPU's
    assert {each.sensor for each in agent.health.temperatures if each.group is SensorGroup.SKIN} == {"battery"}


async def test_only_adopted_devices_that_could_answer_are_probed():
    lives = {life: agent_of(life.name, life) for life in Life}
    stranger = agent_of("STRANGER", adopted=False)
    away = agent_of("AWAY")
    away.device = None
    phones = Phones()
    probes, changed = round_of(phones, [*lives.values(), stranger, away], every_s=0.01)
    running = asyncio.create_task(probes.run())
    try:
        await until(lambda: len(changed) >= 6)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert set(phones.probed) == {"READY", "QUARANTINED", "RECOVERING"}


async def test_phones_that_hang_delay_nobody(monkeypatch):
    monkeypatch.setattr(probe_round, "SLOW_S", 0.01)
    phones = Phones()
    hanging = [agent_of(f"H{number}") for number in range(3 * probe_round.AT_ONCE)]
    phones.shells = {agent.serial: lambda _: Shell(b"", for_ever) for agent in hanging}
    well = agent_of("WELL")
    probes, changed = round_of(phones, [*hanging, well], every_s=0.05)
    running = asyncio.create_task(probes.run())
    try:
        await until(lambda: changed.count("WELL") >= 3)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert {phones.probed.count(agent.serial) for agent in hanging} == {1}  # not once more while the first hangs
    assert set(changed) == {"WELL"}


@pytest.mark.parametrize("next_turn", ["", "shell-1"], ids=["not leased", "somebody else has it"])
async def test_what_is_timed_is_not_probed_until_it_is_given_back(next_turn):
    phones, turns = Phones(), {"timed": "bench-1", "forgotten": "bench-2"}
    timed, other, forgotten = agent_of("TIMED"), agent_of("OTHER"), agent_of("FORGOTTEN")
    now = 5.0
    probes, changed = round_of(phones, [timed, other, forgotten], every_s=0.01, monotonic=lambda: now)
    probes.lease_of = lambda name: turns.get(name, "")
    probes.pause("FORGOTTEN", "forgotten")
    now += PAUSED_S
    probes.pause("TIMED", "timed")
    running = asyncio.create_task(probes.run())
    try:
        await until(lambda: changed.count("OTHER") >= 3 and "FORGOTTEN" in changed)
        assert "TIMED" not in changed
        turns["timed"] = next_turn
        await until(lambda: "TIMED" in changed)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_no_measurement_keeps_a_phone_unwatched_for_long():
    phones, timed, other = Phones(), agent_of("TIMED"), agent_of("OTHER")
    now = timed.health_at = 100.0
    probes, changed = round_of(phones, [timed, other], every_s=0.01, monotonic=lambda: now)
    probes.lease_of = lambda _: "bench-1"
    probes.pause("TIMED", "timed")
    running = asyncio.create_task(probes.run())
    try:
        await until(lambda: changed.count("OTHER") >= 3)
        assert "TIMED" not in changed
        now += UNSEEN_S
        probes.pause("TIMED", "timed")
        await until(lambda: "TIMED" in changed)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_round_that_ends_leaves_no_probe_behind():
    phones = Phones()
    closed = asyncio.Event()

    async def until_cancelled():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # closing takes a turn
            closed.set()
        return b""

    phones.shells["HANGS"] = lambda _: Shell(b"", until_cancelled)
    probes, _ = round_of(phones, [agent_of("HANGS")], every_s=0.01)
    running = asyncio.create_task(probes.run())
    await until(lambda: "HANGS" in phones.probed)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert closed.is_set()


async def test_a_section_in_which_a_phone_gets_stuck_is_left_out_for_a_while(caplog):
    now = 100.0
    phones = Phones()
    phones.shells["S1"] = lambda command: (
        Shell(b"==farm:memory\nMemTotal: 9 kB\n==farm:gpu\n", too_late) if command == probe_command() else Shell(WARM)
    )
    agent = agent_of("S1")
    probes, _ = round_of(phones, [agent], monotonic=lambda: now)
    await probes.read(agent)
    assert agent.health is not None
    assert agent.health.memory_total_bytes == 9216
    await probes.read(agent)  # once may be a busy phone
    assert phones.commands == [probe_command()] * 2
    assert "gpu gets stuck" in caplog.text
    await probes.read(agent)
    assert phones.commands[-1] == probe_command(SECTIONS[:-1])
    assert "gpu" in agent.health.missing
    assert agent.temperature_c == 46.0
    now += LEFT_OUT_S
    await probes.read(agent)
    assert phones.commands[-1] == probe_command()


@pytest.mark.parametrize(("silent", "told"), [(True, 1), (False, 0)])
async def test_a_phone_that_answers_no_command_at_all_has_lost_its_link(silent, told):
    phones = Phones()
    phones.shells["S1"] = lambda _: Shell(b"", too_late)
    phones.silent = {"S1"} if silent else set()
    agent = agent_of("S1")
    events = []
    agent.on_event = events.append
    probes, changed = round_of(phones, [agent])
    await probes.read(agent)
    assert events == [m.LinkLost(7, "it answers no command, though adb lists it", mute=True)] * told
    assert changed == []
