"""Charging is held back and allowed again on every way out; days are kept."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from farm.adb.errors import AdbLinkLost
from farm.common.errors import Code, HostError
from farm.common.events import EventLog
from farm.devices import battery_control
from farm.devices.battery_control import HELD_S, RENEW_S, SAVE_EVERY_S, BatteryController
from farm.devices.battery_policy import BatteryConfig, Window
from farm.devices.health.health_rules import HealthConfig
from farm.devices.lifecycle.state import LifecycleState
from farm.model.device import Life
from farm.model.health import Battery, BatteryDay, Health
from tests.support.reads import ReadsHere
from tests.support.waiting import until

FULL = Health(battery=Battery(percent=90, celsius=30.0, status="charging", powered_by=("usb",)))
NODE = "/sys/class/power_supply/battery/charging_enabled"


class Said:
    def __init__(self, text):
        self.text = text


class Table(ReadsHere):
    def __init__(self):
        self.kept = []
        self.kept_before = (BatteryDay("2026-11-20", 10, 20),)

    def days(self, serial):
        if isinstance(self.kept_before, Exception):
            raise self.kept_before
        return self.kept_before

    async def save(self, serial, day):
        self.kept.append(day)

    async def change_serial(self, serial, to):
        return


class Bench:
    def __init__(self, window=Window.PHONE):
        self.events, self.table, self.commands = EventLog(), Table(), list[str]()
        self.answer = f"held {NODE}"
        self.state, self.boot = "nothing", "boot-1"  # what the phone says of itself, and in which boot
        self.asked_state = 0
        self.now_s, self.wall = 0.0, datetime(2026, 11, 21, 12, tzinfo=UTC)
        self.controller = BatteryController(
            self, self.events, BatteryConfig(window), HealthConfig(), 0.01, self.table,
            monotonic=lambda: self.now_s, wall=lambda: self.wall,
        )  # fmt: skip
        self.agent = type("Agent", (), {})()
        self.agent.name, self.agent.serial = "pixel", "S"
        self.agent.state = LifecycleState(life=Life.READY, adopted=True)
        self.agent.health_at = 1.0

    async def shell(self, serial, command, *, timeout_s):
        what = command.partition("charge.sh ")[2]
        if what == "state":
            self.asked_state += 1
            return Said(f"{self.state}\n")
        self.commands.append(what)
        if isinstance(self.answer, Exception):
            raise self.answer
        return Said(f"{self.answer}\n")

    async def probe(self, percent):
        self.agent.health = replace(FULL, battery=replace(FULL.battery, percent=percent), boot_id=self.boot)
        assert list(self.controller.findings(self.agent, self.agent.health)) == []
        await self.controller.update(self.agent)

    @property
    def told(self):
        return [event.kind for event in self.events.since()]


HOLD = f"hold {HELD_S:.0f}"


async def test_charging_is_held_renewed_and_allowed():
    bench = Bench()
    await bench.probe(79)
    assert bench.commands == []
    await bench.probe(81)
    assert bench.commands == [HOLD]
    assert (await bench.controller.report(bench.agent)).held == NODE
    bench.now_s = RENEW_S - 1
    await bench.probe(75)
    assert bench.commands == [HOLD]
    bench.now_s = RENEW_S
    await bench.probe(70)
    assert bench.commands == [HOLD, HOLD]
    bench.answer = f"allowed {NODE}"
    await bench.probe(40)
    assert bench.commands == [HOLD, HOLD, "allow"]
    assert bench.told == ["battery.held", "battery.charges"]


@pytest.mark.parametrize("said", ["no-root", "no-switch"])
async def test_a_phone_that_does_not_let_us_is_told_of_once(said):
    bench = Bench()
    bench.answer = said
    await bench.probe(90)
    await bench.probe(91)
    assert bench.commands == [HOLD]
    bench.now_s = RENEW_S
    await bench.probe(92)
    assert bench.commands == [HOLD, HOLD]
    assert bench.told == ["battery.refused"]
    assert (await bench.controller.report(bench.agent)).held == ""


async def test_nothing_is_written_unless_it_was_asked_for():
    bench = Bench(Window.OFF)
    await bench.probe(100)
    assert bench.commands == []


@pytest.mark.parametrize("answer", [AdbLinkLost("gone"), f"failed {NODE}", ""], ids=["away", "failed", "says nothing"])
async def test_a_phone_that_was_not_let_go_is_held_until_it_says_otherwise(answer):
    bench = Bench()
    await bench.probe(90)
    bench.answer = answer
    await bench.probe(40)
    assert (await bench.controller.report(bench.agent)).held == NODE
    bench.answer = f"allowed {NODE}"
    await bench.probe(41)
    assert bench.commands == [HOLD, "allow"]  # within the window: held as it was
    await bench.probe(39)
    assert (await bench.controller.report(bench.agent)).held == ""
    await bench.probe(39)
    assert bench.commands == [HOLD, "allow", "allow"]
    assert bench.told == ["battery.held", "battery.charges"]


async def test_a_daemon_that_starts_asks_the_phone_and_again_after_its_reboot():
    bench = Bench()
    bench.state = f"held {NODE}"
    await bench.probe(60)
    assert (await bench.controller.report(bench.agent)).held == NODE
    bench.answer = f"allowed {NODE}"
    await bench.probe(40)
    assert bench.commands[-1] == "allow"
    bench.answer, bench.state = f"held {NODE}", "nothing"
    await bench.probe(90)
    assert (await bench.controller.report(bench.agent)).held == NODE
    bench.boot = "boot-2"
    await bench.probe(70)
    assert (await bench.controller.report(bench.agent)).held == ""
    assert bench.asked_state == 2


async def test_a_store_that_cannot_be_read_stops_neither_findings_nor_charging():
    bench = Bench()
    bench.table.kept_before = HostError("the database cannot be read", Code.STORE_READ_FAILED)
    await bench.probe(90)
    assert bench.commands == [HOLD]
    assert bench.table.kept == []
    bench.table.kept_before = (
        BatteryDay("2026-11-20", 10, 20),
        BatteryDay("2026-11-21", 15, 50, 44.0, health="overheat"),
    )
    await bench.probe(91)
    assert bench.table.kept == [BatteryDay("2026-11-21", 15, 91, 44.0, health="overheat")]
    assert [day.day for day in (await bench.controller.report(bench.agent)).days] == ["2026-11-20", "2026-11-21"]


async def test_the_last_minutes_of_a_day_are_kept_at_midnight_and_when_the_daemon_stops():
    bench = Bench(Window.OFF)
    await bench.probe(60)
    await bench.probe(65)
    bench.wall += timedelta(days=1)
    await bench.probe(70)
    assert [(day.day, day.percent_max) for day in bench.table.kept] == [("2026-11-21", 60), ("2026-11-21", 65)]
    running = asyncio.create_task(bench.controller.run(lambda: (bench.agent,)))
    await asyncio.sleep(0)
    running.cancel()
    await until(running.done)
    assert (bench.table.kept[-1].day, bench.table.kept[-1].percent_max) == ("2026-11-22", 70)


async def test_old_days_go(monkeypatch):
    monkeypatch.setattr(battery_control, "KEPT_DAYS", 2)
    bench = Bench(Window.OFF)
    for _ in range(4):
        await bench.probe(60)
        bench.wall += timedelta(days=1)
    assert [day.day for day in (await bench.controller.report(bench.agent)).days] == ["2026-11-23", "2026-11-24"]


async def test_a_daemon_that_stops_lets_everybody_charge():
    bench = Bench()
    await bench.probe(90)
    running = asyncio.create_task(bench.controller.run(lambda: (bench.agent,)))
    await asyncio.sleep(0)
    running.cancel()
    await until(running.done)
    assert bench.commands[-1] == "allow"


async def test_days_go_on_and_are_kept_now_and_then():
    bench = Bench(Window.OFF)
    await bench.probe(60)
    await bench.probe(61)
    assert [day.percent_max for day in bench.table.kept] == [60]
    bench.now_s = SAVE_EVERY_S
    await bench.probe(62)
    bench.wall += timedelta(days=1)
    bench.now_s *= 2
    await bench.probe(63)
    assert [(day.day, day.percent_max) for day in bench.table.kept[1:]] == [("2026-11-21", 62), ("2026-11-22", 63)]
    assert [day.day for day in (await bench.controller.report(bench.agent)).days] == [
        "2026-11-20",
        "2026-11-21",
        "2026-11-22",
    ]
