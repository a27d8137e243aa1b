"""The charge window, a battery's days, and what they tell."""

from dataclasses import replace

import pytest

from farm.devices.battery_policy import BatteryConfig, battery_findings, charges, swelling, with_reading
from farm.model.health import Battery, BatteryDay, FindingKind

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
