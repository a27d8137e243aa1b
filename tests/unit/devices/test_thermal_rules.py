"""The thermal gate: limits, margins, old readings, hard limits, models; and what it says."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.devices.thermal.thermal_rules import (
    HeatConfig,
    HeatLimits,
    HeatState,
    ModelHeat,
    closed,
    policy_for,
    take,
    too_hot,
)
from farm.model.health import Battery, Health, SensorGroup, Temperature, ThrottleStatus
from farm.model.requests import LeaseClass

BENCH, TUNE, INTERACTIVE = LeaseClass.BENCH, LeaseClass.TUNE, LeaseClass.INTERACTIVE
POLICY = policy_for("", HeatConfig())


def read(skin=None, throttle=ThrottleStatus.NONE, throttled_by="", **groups):
    """A probe: `cpu=50.0`, `gpu`, `battery`, `other`."""
    found = groups | ({} if skin is None else {"skin": skin})
    temperatures = tuple(Temperature(name, celsius, SensorGroup(name), "test") for name, celsius in found.items())
    return Health(temperatures=temperatures, throttle=throttle, throttled_by=throttled_by)


def after(*probes, policy=POLICY, every_s=10.0, idle=True):
    """What is known after these probes; and when the last one was."""
    thermal, at_s = HeatState(), 1000.0
    for probe in probes:
        at_s += every_s
        thermal = take(thermal, probe, at_s, policy, idle=idle)
    return thermal, at_s


def classes(*probes, **more):
    thermal, _ = after(*probes, **more)
    return set(thermal.shut)


def said(*probes, lease_class=BENCH, later_s=0.0, policy=POLICY):
    thermal, at_s = after(*probes, policy=policy)
    return closed(thermal, policy, at_s + later_s)[lease_class]


@pytest.mark.parametrize(
    ("probe", "expected"),
    [
        (read(30.0), set()),
        (read(38.0), set()),
        (read(38.1), {BENCH}),
        (read(43.1), {BENCH, TUNE}),
        (read(48.1), {BENCH, TUNE, INTERACTIVE}),
        (read(30.0, cpu=61.0), {BENCH}),
        (read(30.0, gpu=61.0), {BENCH}),
        (read(30.0, battery=40.5), {BENCH}),
        (read(30.0, battery=51.0), set(LeaseClass)),
        (read(30.0, other=90.0), set()),
        (read(30.0, throttle=ThrottleStatus.LIGHT), {BENCH}),
        (read(30.0, throttle=ThrottleStatus.SEVERE), {BENCH, TUNE}),
        (read(30.0, throttle=ThrottleStatus.CRITICAL), set(LeaseClass)),
        (read(throttle=None), set()),
        (Health(battery=Battery(celsius=41.0)), {BENCH}),
    ],
)
def test_the_first_probe_closes_what_is_above_a_limit(probe, expected):
    assert classes(probe) == expected


def test_a_core_at_work_is_no_reason_to_keep_the_next_bench_away():
    busy = read(30.0, cpu=85.0, gpu=80.0)
    assert classes(busy, idle=False) == set()
    assert classes(busy, idle=True) == {BENCH}
    assert classes(read(30.0, cpu=96.0), idle=False) == {TUNE}  # its own limit is for work
    assert classes(read(39.0, cpu=85.0), idle=False) == {BENCH}  # the body stays warm


def test_the_warmest_sensor_of_a_group_counts():
    cool, warm = (Temperature(name, c, SensorGroup.SKIN, "test") for name, c in (("front", 30.0), ("back", 39.0)))
    assert classes(Health(temperatures=(cool, warm))) == {BENCH}


def test_it_opens_a_margin_below_and_when_it_stayed_there():
    assert classes(read(39.0), read(37.0)) == {BENCH}  # between
    assert classes(read(39.0), read(36.0)) == {BENCH}  # just now
    assert classes(read(39.0), read(36.0), read(36.0)) == {BENCH}  # for 10 of 20 s
    assert classes(read(39.0), read(36.0), read(36.0), read(36.0)) == set()
    assert classes(read(39.0), read(36.0), read(36.5), read(36.0), read(36.0)) == {BENCH}  # it came back in between
    assert classes(read(39.0), read(36.0), read(36.0), read(36.0), read(37.9)) == set()  # open: the limit counts


def test_what_is_said():
    assert said(read(41.2)).reason == "skin 41.2 °C is above 38 °C for bench"
    assert str(said(read(41.2))) == "skin 41.2 °C is above 38 °C for bench, about 6 min"
    assert said(read(39.0), read(37.0)).reason == "skin 37.0 °C is not down to 36 °C for bench"
    assert said(read(30.0, cpu=70.0)).reason == "CPU 70.0 °C is above 60 °C for bench"
    assert said(read(49.0), lease_class=INTERACTIVE).reason == "skin 49.0 °C is above 48 °C for any lease"
    waiting = said(read(39.0), read(36.0), read(36.0))
    assert waiting.reason == "cool enough for bench if it stays so for 20 s"
    assert waiting.opens_in_s == 10.0


def test_a_throttled_phone_says_by_which_sensor_and_no_time():
    shut = said(read(30.0, throttle=ThrottleStatus.MODERATE, throttled_by="SKIN"))
    assert shut.reason == "thermal status moderate (SKIN) is above none for bench"
    assert shut.opens_in_s is None
    warm = read(41.2, cpu=70.0, throttle=ThrottleStatus.LIGHT)
    assert str(said(warm)) == "skin 41.2 °C is above 38 °C for bench, about 6 min"  # throttling ends with the warmth


def test_old_readings_change_nothing_and_are_called_old():
    thermal, at_s = after(read(41.0))
    shut = closed(thermal, POLICY, at_s + 600.0)
    assert set(shut) == {BENCH}
    assert shut[BENCH].reason == "skin 41.0 °C is above 38 °C for bench"
    assert shut[BENCH].evidence == "Last read 10 min ago."
    assert shut[BENCH].opens_in_s is None


def test_a_sensor_that_falls_silent_keeps_the_phone_closed_until_it_speaks_again():
    silent = [read(battery=30.0)] * 66  # a section in which a phone gets stuck is left out for 10 min
    assert classes(read(60.0, battery=30.0), *silent) == set(LeaseClass)
    assert said(read(60.0, battery=30.0), *silent).reason == "skin 60.0 °C is above 38 °C for bench"
    assert said(read(60.0, battery=30.0), *silent).opens_in_s is None
    assert classes(read(60.0, battery=30.0), *silent, *[read(30.0, battery=30.0)] * 3) == set()


def test_a_thermal_status_that_is_not_told_any_more_stands():
    critical, silent = read(30.0, throttle=ThrottleStatus.CRITICAL), read(30.0, throttle=None)
    assert classes(critical, *[silent] * 30) == set(LeaseClass)
    assert (
        said(critical, *[silent] * 30, lease_class=INTERACTIVE).reason
        == "thermal status critical is above severe for any lease"
    )
    assert classes(critical, *[silent] * 30, *[read(30.0)] * 3) == set()


def test_a_cool_reading_of_a_sensor_that_is_gone_is_forgotten():
    gone, _ = after(read(30.0, cpu=58.0), *[read(30.0)] * 13)
    assert set(gone.seen) == {SensorGroup.SKIN}


def test_a_phone_without_a_thermometer_is_let_through_and_known_as_such():
    thermal, at_s = after(Health())
    assert closed(thermal, POLICY, at_s) == {}
    assert thermal.blind
    assert not HeatState().blind  # not probed yet
    assert not after(read(30.0))[0].blind


def test_a_room_that_is_too_warm_is_named():
    cooling = [read(39.0 + 8.0 * math.exp(-i / 30)) for i in range(200)]
    shut = said(*cooling)
    assert shut.opens_in_s is None
    assert shut.reason == "skin 39.0 °C is above 38 °C for bench"
    assert shut.evidence == "It will not cool below 39 °C by itself."


def test_tables_of_the_configuration_and_models():
    config = HeatConfig(
        margin_c=1.0,
        bench=HeatLimits(skin_c=35.0),
        model={"Pixel 7": ModelHeat(bench=HeatLimits(skin_c=40.0), hard=HeatLimits(battery_c=45.0))},
    )
    usual, pixel = policy_for("SM-A556B", config), policy_for("pixel 7", config)
    assert usual.limits[BENCH][SensorGroup.SKIN].most == 35.0
    assert usual.limits[BENCH][SensorGroup.SKIN].margin == 1.0
    assert usual.limits[BENCH][SensorGroup.CPU].most == 60.0  # what is not said stays
    assert pixel.limits[BENCH][SensorGroup.SKIN].most == 40.0
    assert pixel.limits[INTERACTIVE][SensorGroup.BATTERY].most == 45.0
    assert usual.limits[INTERACTIVE][SensorGroup.BATTERY].most == 50.0


def test_a_class_is_never_laxer_than_the_hard_limit():
    policy = policy_for("", HeatConfig(hard=HeatLimits(skin_c=30.0)))
    assert {policy.limits[each][SensorGroup.SKIN].most for each in LeaseClass} == {30.0}


@pytest.mark.parametrize(
    ("probe", "expected"),
    [
        (read(64.0, battery=59.0, cpu=150.0, throttle=ThrottleStatus.CRITICAL), ""),
        (read(70.0), "skin 70.0 °C is above 65 °C, where every lease ends"),
        (read(40.0, battery=60.5), "battery 60.5 °C is above 60 °C, where every lease ends"),
        (read(45.0, throttle=ThrottleStatus.SHUTDOWN), "thermal status shutdown is above emergency: every lease ends"),
    ],
)
def test_above_the_last_limit_every_lease_ends(probe, expected):
    thermal, _ = after(probe)
    assert too_hot(thermal, POLICY) == expected
    laxer = policy_for("X", HeatConfig(model={"X": ModelHeat(end_leases=HeatLimits(80.0, battery_c=80.0, throttle=6))}))
    assert too_hot(thermal, laxer) == ""


temperatures = st.floats(15.0, 60.0)
probes = st.builds(
    lambda skin, cpu, battery, throttle: read(skin, throttle, cpu=cpu + 20.0, battery=battery),
    temperatures, temperatures, temperatures, st.sampled_from((None, *ThrottleStatus)),
)  # fmt: skip


@given(st.lists(probes, min_size=1, max_size=30), st.floats(1.0, 60.0), st.floats(0.0, 500.0))
def test_whatever_is_read(history, every_s, later_s):
    """The gate is sound: never open above a limit, never closed by nothing, hard closes all; always explained."""
    thermal, at_s = HeatState(), 0.0
    for probe in history:
        before = thermal
        at_s += every_s
        thermal = take(thermal, probe, at_s, POLICY, idle=True)
        for lease_class in LeaseClass:
            limits = POLICY.limits[lease_class]
            above = any(each.celsius > limits[each.group].most for each in probe.temperatures if each.group in limits)
            above |= probe.throttle is not None and probe.throttle > POLICY.throttle[lease_class].most
            if above:
                assert lease_class in thermal.shut
            elif lease_class not in before.shut:
                assert lease_class not in thermal.shut
        if INTERACTIVE in thermal.shut and INTERACTIVE not in before.shut:
            assert set(thermal.shut) == set(LeaseClass)
    shut = closed(thermal, POLICY, at_s + later_s)
    assert set(shut) == set(thermal.shut)
    for each in shut.values():
        assert each.reason
        assert each.opens_in_s is None or each.opens_in_s >= 0.0
