"""The round of probes: even, bounded, and no phone waits for one that hangs."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from farm.adb.errors import AdbTimeout
from farm.devices.health.probe.parse import SECTIONS, probe_command
from farm.devices.health.probe.thermal import ProbeConfig, SensorPolicy
from farm.devices.health.probe_round import AT_ONCE, LEFT_OUT_S, PAUSED_S, UNSEEN_S, ProbeRound
from farm.devices.lifecycle import messages as m
from farm.model.device import Life
from farm.model.health import SensorGroup
from tests.support.fake_phone import FakeClient, StubAgent, for_ever
from tests.support.virtual_time import virtual_time
from tests.support.waiting import until
from tests.unit.devices.captures import capture, probe_answer

WARM = probe_answer(
    battery=capture("dumpsys_battery/honor-alt-nx1-magicos"), thermal=capture("thermalservice/pixel8a-android17")
)
LATE = AdbTimeout("no answer")
LAB_TIME = datetime(2026, 11, 20, 12, tzinfo=UTC)


class Round(ProbeRound):
    """Of phones that are warm and well, or answer as a test says; `changed` has the serials of all that were read."""

    def __init__(self, *agents, every_s=10.0, policies=None, **answers):
        self.now_s, self.changed, self.client = 100.0, [], FakeClient(WARM, **answers)
        super().__init__(
            self.client, lambda: agents, lambda agent: self.changed.append(agent.serial),
            ProbeConfig(every_s, policies or {}), monotonic=lambda: self.now_s, wall=lambda: LAB_TIME,
        )  # fmt: skip

    @asynccontextmanager
    async def running(self):
        task = asyncio.create_task(self.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, serial, times=1):
        """Until that phone was read so often."""
        await until(lambda: self.changed.count(serial) >= times)


async def test_a_probe_sets_health_and_the_two_figures():
    agent = StubAgent("S1")
    probes = Round(agent)
    await probes.read(agent)
    assert agent.health is not None
    assert (agent.temperature_c, agent.battery_percent, agent.health_at, agent.read_at) == (46.0, 54, 100.0, LAB_TIME)
    assert probes.changed == ["S1"]


async def test_operators_say_what_counts_for_a_model():
    agent = StubAgent("S1")
    await Round(agent, policies={"m1": SensorPolicy(ignore=("LITTLE", "BIG", "MID"), skin="battery")}).read(agent)
    assert (agent.temperature_c, agent.temperature_of) == (34.0, "G3D")  # the GPU's
    assert {each.sensor for each in agent.health.temperatures if each.group is SensorGroup.SKIN} == {"battery"}


@virtual_time
async def test_only_adopted_devices_that_could_answer_are_probed():
    away = StubAgent("AWAY")
    away.device = None
    lives = [StubAgent(life.name, life=life) for life in Life]
    probes = Round(*lives, StubAgent("STRANGER", adopted=False), away, every_s=0.01)
    async with probes.running():
        await until(lambda: len(probes.changed) >= 6)
    assert set(probes.client.serials) == {"READY", "QUARANTINED", "RECOVERING"}


@virtual_time
async def test_phones_that_hang_delay_nobody():
    hanging = {f"H{number}": (for_ever,) for number in range(3 * AT_ONCE)}
    probes = Round(*map(StubAgent, [*hanging, "WELL"]), every_s=1.0, **hanging)
    async with probes.running():
        await probes.until("WELL", 30)
        read = list(zip(probes.client.serials, probes.client.commands, strict=True))
    assert all(read.count((serial, probe_command())) == 1 for serial in hanging)  # not once more while the first hangs
    assert set(probes.changed) == {"WELL"}


@pytest.mark.parametrize("next_turn", ["", "shell-1"], ids=["not leased", "somebody else has it"])
@virtual_time
async def test_what_is_timed_is_not_probed_until_it_is_given_back(next_turn):
    turns = {"timed": "bench-1", "forgotten": "bench-2"}
    probes = Round(*map(StubAgent, ("TIMED", "OTHER", "FORGOTTEN")), every_s=0.01)
    probes.lease_of = lambda name: turns.get(name, "")
    probes.pause("FORGOTTEN", "forgotten")
    probes.now_s += PAUSED_S
    probes.pause("TIMED", "timed")
    async with probes.running():
        await probes.until("OTHER", 3)
        await probes.until("FORGOTTEN")
        assert "TIMED" not in probes.changed
        turns["timed"] = next_turn
        await probes.until("TIMED")


@virtual_time
async def test_no_measurement_keeps_a_phone_unwatched_for_long():
    timed = StubAgent("TIMED")
    probes = Round(timed, StubAgent("OTHER"), every_s=0.01)
    timed.health_at = probes.now_s
    probes.lease_of = lambda _: "bench-1"
    probes.pause("TIMED", "timed")
    async with probes.running():
        await probes.until("OTHER", 3)
        assert "TIMED" not in probes.changed
        probes.now_s += UNSEEN_S
        probes.pause("TIMED", "timed")
        await probes.until("TIMED")


@virtual_time
async def test_a_round_that_ends_leaves_no_probe_behind():
    probes = Round(StubAgent("HANGS"), every_s=0.01, HANGS=(for_ever,))
    before = asyncio.all_tasks()
    async with probes.running():
        await until(lambda: probes.client.serials)
    assert asyncio.all_tasks() == before


async def test_a_section_in_which_a_phone_gets_stuck_is_left_out_for_a_while(caplog):
    stuck = (b"==farm:memory\nMemTotal: 9 kB\n==farm:gpu\n", LATE)
    agent = StubAgent("S1")
    probes = Round(agent, S1=lambda command: stuck if command == probe_command() else WARM)
    await probes.read(agent)
    assert agent.health.memory_total_bytes == 9216
    await probes.read(agent)  # once may be a busy phone
    assert "gpu gets stuck" in caplog.text
    await probes.read(agent)
    assert probes.client.commands == [probe_command(), probe_command(), probe_command(SECTIONS[:-1])]
    assert "gpu" in agent.health.missing
    assert agent.temperature_c == 46.0
    probes.now_s += LEFT_OUT_S
    await probes.read(agent)
    assert probes.client.commands[-1] == probe_command()


@pytest.mark.parametrize("silent", [True, False])
async def test_a_phone_that_answers_no_command_at_all_has_lost_its_link(silent):
    agent = StubAgent("S1", follow=7)
    probes = Round(agent, S1=lambda command: "" if command == "true" and not silent else (LATE,))
    await probes.read(agent)
    lost = m.LinkLost(7, "it answers no command, though adb lists it", mute=True)
    assert (agent.told, probes.changed) == ([lost] * silent, [])
