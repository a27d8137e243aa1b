"""The charge window and a battery's days; charging is held back and allowed again on every way out."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from farm.adb.errors import AdbLinkLost
from farm.common.errors import Code, HostError
from farm.common.events import EventLog
from farm.devices.battery_control import HELD_S, RENEW_S, SAVE_EVERY_S, BatteryController
from farm.devices.battery_policy import BatteryConfig, Window, battery_findings, charges, swelling, with_reading
from farm.devices.health.health_rules import HealthConfig
from farm.model.health import KEPT_DAYS, Battery, BatteryDay, FindingKind, Health
from tests.support.fake_phone import FakeClient, StubAgent

NOW = Battery(70, 31.0, 4000, 200.0, "good", "charging", ("usb",), 200, 4_000_000, 4_500_000)
WINDOW = BatteryConfig(low_percent=40, high_percent=80)
DAY = BatteryDay("2026-11-22", 60, 70, 31.0, 200, 4_000_000, 4_500_000, "good")


@pytest.mark.parametrize(
    ("percent", "held_back", "wanted"),
    [
        (79, False, None), (80, False, False), (100, False, False),
        (80, True, None), (41, True, None), (40, True, True), (None, True, True), (None, False, None),
    ],
)  # fmt: skip
def test_charging_stops_at_the_top_and_goes_on_at_the_bottom(percent, held_back, wanted):
    assert charges(replace(NOW, percent=percent), WINDOW, held_back) is wanted


def test_a_phone_without_a_cable_needs_no_switch():
    assert charges(replace(NOW, percent=95, powered_by=()), WINDOW, held_back=False) is None


def test_a_day_keeps_its_extremes_its_latest_gauge_and_its_worst_word():
    day = BatteryDay("2026-11-22")
    for reading in (
        NOW,
        replace(NOW, percent=55, celsius=38.0, cycles=201),
        replace(NOW, health="overheat"),
        Battery(),
    ):
        day = with_reading(day, reading)
    day = with_reading(day, NOW)
    assert day == BatteryDay("2026-11-22", 55, 70, 38.0, 200, 4_000_000, 4_500_000, "overheat")
    assert day.capacity == pytest.approx(0.889, abs=0.001)


HIGH_AT_REST = replace(NOW, status="discharging", percent=50, voltage_mv=4250)
COLLAPSED = (replace(DAY, full_uah=4_300_000), DAY, replace(DAY, full_uah=3_500_000))
WARM = tuple(replace(DAY, celsius_max=46.0) for _ in range(3))


@pytest.mark.parametrize(
    ("now", "days", "sign"),
    [
        (HIGH_AT_REST, (DAY,), "4250 mV at 50 % without charging"),
        (NOW, COLLAPSED, "its capacity fell from 96% to 78% of new within 3 days"),
        (NOW, WARM, "up to 46 °C on each of the last 3 days"),
        (replace(NOW, health="over-voltage"), (), "the phone reports over-voltage"),
    ],
)
def test_each_sign_of_swelling_has_its_figure(now, days, sign):
    assert swelling(now, days) == (sign,)
    assert list(battery_findings(now, days, 65, 1200)) == []  # one alone has many harmless causes


@pytest.mark.parametrize(
    ("now", "days"),
    [
        (NOW, (DAY,)),
        (replace(HIGH_AT_REST, status="charging"), (DAY,)),
        (replace(HIGH_AT_REST, percent=90), (DAY,)),
        (NOW, (DAY, replace(DAY, full_uah=3_800_000))),
        (NOW, (*WARM[:2], DAY, WARM[0])),
        (Battery(), ()),
    ],
)
def test_a_battery_that_is_used_shows_no_sign(now, days):
    assert swelling(now, days) == ()


def test_two_signs_ask_a_person_to_look_and_are_listed():
    (finding,) = battery_findings(HIGH_AT_REST, COLLAPSED, 65, 1200)
    assert finding.kind is FindingKind.BATTERY_SWOLLEN
    assert finding.cause == "the battery may be swelling"
    assert finding.evidence.startswith("4250 mV at 50 % without charging\nits capacity fell")
    assert finding.hint.startswith("look at it")
    assert not finding.act


def test_a_worn_battery_is_named_with_what_wore_it():
    (finding,) = battery_findings(replace(NOW, full_uah=2_900_000, cycles=1300), (), 65, 1200)
    assert finding.kind is FindingKind.BATTERY_WORN
    assert finding.cause == "the battery is worn out"
    assert "it holds 64% of what it held when new, less than 65 %\n1300 charge cycles" in finding.evidence
    assert list(battery_findings(replace(NOW, full_uah=None, cycles=None), (), 65, 1200)) == []


FULL = Health(battery=Battery(percent=90, celsius=30.0, status="charging", powered_by=("usb",)))
NODE = "/sys/class/power_supply/battery/charging_enabled"
HOLD = f"hold {HELD_S:.0f}"


class Bench:
    """One phone that is probed by hand; its script says `answer`, and `state` when it is asked for that."""

    def __init__(self, table, window):
        self.answer, self.state, self.boot = f"held {NODE}", "nothing", "boot-1"
        self.client = FakeClient({" state": lambda _: self.state, "": lambda _: self.answer})
        self.events, self.table, self.agent = EventLog(), table, StubAgent("S", "pixel")
        self.agent.health_at = 1.0
        self.now_s, self.wall = 0.0, datetime(2026, 11, 21, 12, tzinfo=UTC)
        self.controller = BatteryController(
            self.client, self.events, BatteryConfig(window), HealthConfig(), 0.01, table,
            monotonic=lambda: self.now_s, wall=lambda: self.wall,
        )  # fmt: skip

    def reads(self, percent):
        self.agent.health = replace(FULL, battery=replace(FULL.battery, percent=percent), boot_id=self.boot)
        assert list(self.controller.findings(self.agent, self.agent.health)) == []

    async def probe(self, *percents):
        for percent in percents:
            self.reads(percent)
            await self.controller.update(self.agent)

    async def stop(self):
        """The daemon begins, and ends."""
        running = asyncio.create_task(self.controller.run(lambda: (self.agent,)))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    def asked(self):
        """What the phone's script was asked, but for its state."""
        words = [command.partition("charge.sh ")[2] for command in self.client.commands]
        return [each for each in words if each != "state"]

    def told(self):
        return [event.kind for event in self.events.since()]

    async def held(self):
        return (await self.controller.report(self.agent)).held

    async def days(self):
        return [(day.day, day.percent_max) for day in (await self.controller.report(self.agent)).days]

    def stored(self):
        return [(day.day, day.percent_max) for day in self.table.days("S")]


@pytest.fixture
async def bench(store):
    await store.batteries.save("S", BatteryDay("2026-11-20", 10, 20))
    return Bench(store.batteries, Window.PHONE)


@pytest.fixture
async def days(store):
    """Charging is left alone."""
    await store.batteries.save("S", BatteryDay("2026-11-20", 10, 20))
    return Bench(store.batteries, Window.OFF)


async def test_charging_is_held_renewed_and_allowed(bench):
    await bench.probe(79)
    assert bench.asked() == []
    await bench.probe(81)
    assert (bench.asked(), await bench.held()) == ([HOLD], NODE)
    bench.now_s = RENEW_S - 1
    await bench.probe(75)
    assert bench.asked() == [HOLD]
    bench.now_s = RENEW_S
    await bench.probe(70)
    assert bench.asked() == [HOLD, HOLD]
    bench.answer = f"allowed {NODE}"
    await bench.probe(40)
    assert bench.asked() == [HOLD, HOLD, "allow"]
    assert bench.told() == ["battery.held", "battery.charges"]


@pytest.mark.parametrize("said", ["no-root", "no-switch"])
async def test_a_phone_that_does_not_let_us_is_told_of_once(bench, said):
    bench.answer = said
    await bench.probe(90, 91)
    assert bench.asked() == [HOLD]
    bench.now_s = RENEW_S
    await bench.probe(92)
    assert bench.asked() == [HOLD, HOLD]
    assert (bench.told(), await bench.held()) == (["battery.refused"], "")


async def test_nothing_is_written_unless_it_was_asked_for(days):
    await days.probe(100)
    assert days.client.commands == []


@pytest.mark.parametrize("answer", [AdbLinkLost("gone"), f"failed {NODE}", ""], ids=["away", "failed", "says nothing"])
async def test_a_phone_that_was_not_let_go_is_held_until_it_says_otherwise(bench, answer):
    await bench.probe(90)
    bench.answer = answer
    await bench.probe(40)
    assert await bench.held() == NODE
    bench.answer = f"allowed {NODE}"
    await bench.probe(41)
    assert bench.asked() == [HOLD, "allow"]  # within the window: held as it was
    await bench.probe(39)
    assert await bench.held() == ""
    await bench.probe(39)
    assert bench.asked() == [HOLD, "allow", "allow"]
    assert bench.told() == ["battery.held", "battery.charges"]


async def test_a_daemon_that_starts_asks_the_phone_and_again_after_its_reboot(bench):
    bench.state = f"held {NODE}"
    await bench.probe(60)
    assert await bench.held() == NODE
    bench.answer = f"allowed {NODE}"
    await bench.probe(40)
    assert bench.asked()[-1] == "allow"
    bench.answer, bench.state = f"held {NODE}", "nothing"
    await bench.probe(90)
    assert await bench.held() == NODE
    bench.boot = "boot-2"
    await bench.probe(70)
    assert await bench.held() == ""
    assert sum(" state" in command for command in bench.client.commands) == 2


async def test_a_daemon_that_stops_lets_everybody_charge(bench):
    await bench.probe(90)
    await bench.stop()
    assert bench.asked()[-1] == "allow"


async def unreadable(*_):
    raise HostError("the database cannot be read", Code.STORE_READ_FAILED)


async def test_a_store_that_cannot_be_read_stops_neither_findings_nor_charging(bench, store):
    await store.batteries.save("S", BatteryDay("2026-11-21", 15, 50, 44.0, health="overheat"))
    reads, bench.table.in_thread = bench.table.in_thread, unreadable
    await bench.probe(90)
    assert bench.asked() == [HOLD]
    assert bench.stored() == [("2026-11-20", 20), ("2026-11-21", 50)]
    bench.table.in_thread = reads
    await bench.probe(91)
    assert store.batteries.days("S")[-1] == BatteryDay("2026-11-21", 15, 91, 44.0, health="overheat")
    assert await bench.days() == [("2026-11-20", 20), ("2026-11-21", 91)]


async def test_the_last_minutes_of_a_day_are_kept_at_midnight_and_when_the_daemon_stops(days):
    await days.probe(60, 65)
    assert days.stored()[-1] == ("2026-11-21", 60)
    days.wall += timedelta(days=1)
    await days.probe(70)
    assert days.stored()[1:] == [("2026-11-21", 65)]
    await days.stop()
    assert days.stored()[-1] == ("2026-11-22", 70)


async def test_days_go_on_and_are_kept_now_and_then(days):
    await days.probe(60, 61)
    days.now_s = SAVE_EVERY_S - 1
    await days.probe(62)
    assert days.stored()[-1] == ("2026-11-21", 60)
    days.now_s = SAVE_EVERY_S
    await days.probe(61)
    assert days.stored()[-1] == ("2026-11-21", 62)
    assert await days.days() == [("2026-11-20", 20), ("2026-11-21", 62)]


def test_old_days_go():
    days = Bench(None, Window.OFF)
    for _ in range(KEPT_DAYS + 2):
        days.reads(60)
        days.wall += timedelta(days=1)
    assert len(days.controller._devices[days.agent].days) == KEPT_DAYS
