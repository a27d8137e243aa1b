"""The thermal gate: limits, margins, hard limits, models, what it says; and the gates over a board."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.events import EventLog
from farm.devices.lifecycle.recovery import RecoveryAction, RecoveryProgress
from farm.devices.power.power_rules import PowerConfig, PowerRule
from farm.devices.power.switchboard import Switchboard
from farm.devices.thermal.thermal_gates import ThermalGates, others_on_hub
from farm.devices.thermal.thermal_rules import (
    NO_THERMOMETER,
    HeatConfig,
    HeatLimits,
    HeatState,
    ModelHeat,
    closed,
    policy_for,
    take,
    too_hot,
)
from farm.devices.views import DeviceViews
from farm.model.device import Closed, Heat, Life, parse_place
from farm.model.health import Battery, DeviceFault, Health, SensorGroup, Temperature, ThrottleStatus
from farm.model.identity import DeviceIdentity
from farm.model.requests import LeaseClass
from tests.support.fake_phone import StubAgent

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


BENCH, TUNE = LeaseClass.BENCH, LeaseClass.TUNE


class Board:
    """A board with agents that are nothing but their facts, and a clock: `Board(a="1-4.1", b="1-4.2")`."""

    def __init__(self, heat=None, losing_power=lambda *_: (), **paths):
        self.now_s = 100.0
        self.gates = ThermalGates(heat, monotonic=lambda: self.now_s)
        self.events = EventLog()
        registry = SimpleNamespace(called=lambda *_, **__: ("", {}, ()))
        self.views = DeviceViews(registry, self.events, self.gates, losing_power)
        self.told = []
        self.views.subscribe(self.told.append)
        self.agents = {}
        for name, path in (paths or {"a": ""}).items():
            self.agents[name] = StubAgent(f"s-{name}", name, place=parse_place(path))
            self.update(name)

    def update(self, name, place=None, **state):
        """Its agent changed; returns its view."""
        agent = self.agents[name]
        agent.state, agent.place = replace(agent.state, **state), parse_place(place) if place else agent.place
        self.views.update(agent)
        return self.view(name)

    def power_cycled(self, name, life=Life.OFFLINE, action=RecoveryAction.POWER_CYCLE):
        progress = RecoveryProgress().begin(action, DeviceFault.OFFLINE, "it is offline", 1.0)
        return self.update(name, life=life, progress=progress)

    def probe(self, name, *skins_c, **more):
        """Every 10 s a temperature of its skin, or none; returns its view."""
        agent = self.agents[name]
        for skin_c in skins_c:
            self.now_s += 10.0
            found = () if skin_c is None else (Temperature("skin", skin_c, SensorGroup.SKIN, "test"),)
            agent.health, agent.health_at = Health(temperatures=found, **more), self.now_s
            self.update(name)
        return self.view(name)

    def view(self, name):
        return self.views.view(f"s-{name}")

    def news(self):
        heat = [event for event in self.events.since() if event.kind in ("device.cooling", "device.cool")]
        return [(event.kind.removeprefix("device."), *event.data["classes"]) for event in heat]


def test_a_phone_above_the_last_limit_is_no_ones():
    board = Board()
    assert board.probe("a", 60.0).too_hot == ""
    assert board.probe("a", 66.0).too_hot == "skin 66.0 °C is above 65 °C, where every lease ends"


def test_a_warm_phone_is_closed_to_bench_and_a_hard_limit_is_cooling_for_everybody():
    view = Board().probe("a", 41.2)
    assert (set(view.closed), view.heat, view.leasable) == ({BENCH}, Heat.OK, True)
    assert (view.serves(BENCH), view.serves(TUNE)) == (False, True)
    view = Board().probe("a", 30.0, throttle=ThrottleStatus.CRITICAL)
    assert (set(view.closed), view.heat, view.leasable) == (set(LeaseClass), Heat.COOLING, False)


def test_news_comes_when_a_class_closes_or_opens_and_not_with_every_reading():
    board = Board()
    board.probe("a", 30.0, 41.0, 41.1, 41.3, 43.5, 43.6, 40.0, 39.9, 39.8, 35.0, 35.0, 35.0)
    assert board.news() == [("cooling", "bench"), ("cooling", "tune"), ("cool", "tune"), ("cool", "bench")]
    reasons = [event.data["reason"] for event in board.events.since() if event.kind == "device.cooling"]
    assert reasons == ["skin 41.0 °C is above 38 °C for bench", "skin 43.5 °C is above 43 °C for tune"]


def test_the_same_probe_shown_again_counts_once():
    board = Board()
    board.probe("a", 41.0, 35.0)
    for _ in range(5):
        board.now_s += 10.0
        view = board.update("a")  # something else about it changed; no new reading
    assert set(view.closed) == {BENCH}


def test_a_phone_that_is_held_teaches_nothing_about_cooling():
    board = Board()
    board.gates.holds = lambda name: name == "a"
    board.probe("a", 41.0, 40.0, 39.0)
    assert board.gates._devices["s-a"].thermal.curves[SensorGroup.SKIN].segment == ()


def test_a_model_has_limits_of_its_own():
    board = Board(HeatConfig(model={"SM-A556B": ModelHeat(bench=HeatLimits(skin_c=42.0))}), a="", b="")
    board.agents["a"].identity = DeviceIdentity(model="SM-A556B")
    assert board.probe("a", 41.0).serves(BENCH)
    assert not board.probe("b", 41.0).serves(BENCH)


@pytest.mark.parametrize("life", [Life.PROVISIONING, Life.RECOVERING])
def test_bench_waits_while_a_neighbour_is_loud(life):
    board = Board(a="1-4.1", b="1-4.2", far="2-1.1", nowhere="")
    board.update("b", life=life)
    assert board.view("a").closed[BENCH].reason == "b on the same hub is being set up or recovered"
    assert board.view("a").serves(TUNE)
    assert all(board.view(name).serves(BENCH) for name in ("far", "nowhere"))
    assert board.probe("a", 41.0).closed[BENCH].reason.startswith("skin 41.0")  # heat is the reason when both close
    board.probe("a", 30.0, 30.0, 30.0)
    board.update("b", life=Life.READY)
    assert board.view("a").serves(BENCH)
    assert board.told[-1] == board.view("a")
    assert board.news() == [("cooling", "bench"), ("cool", "bench")]


@pytest.mark.parametrize(
    ("action", "disturbs"),
    [(RecoveryAction.REBOOT, True), (RecoveryAction.POWER_CYCLE, True), (RecoveryAction.REPUSH, False)],
)
def test_a_neighbour_that_was_sent_away_disturbs_until_it_is_back(action, disturbs):
    board = Board(a="1-4.1", b="1-4.2")
    for life in (Life.GONE, Life.OFFLINE, Life.IDENTIFYING, Life.STARTING, Life.CHECKING):
        board.power_cycled("b", life, action)
        assert board.view("a").serves(BENCH) is not disturbs
        assert board.gates.busy_beside(board.view("a"), board.views.views()) == disturbs
    board.update("b", life=Life.CHECKING, progress=RecoveryProgress())  # its time is over, or it is back
    assert board.view("a").serves(BENCH)


def test_a_loud_neighbour_that_is_forgotten_or_moved_is_loud_no_more():
    board = Board(a="1-4.1", b="1-4.2")
    board.update("b", life=Life.PROVISIONING)
    assert not board.view("a").serves(BENCH)
    board.update("b", "3-1.1")
    assert board.view("a").serves(BENCH)
    board.update("b", "1-4.2")
    assert not board.view("a").serves(BENCH)
    board.views.take_down("s-b", "forgotten")
    assert board.view("a").serves(BENCH)


def test_who_loses_power_with_another_is_nobodys_until_that_one_is_back():
    whole_hub = PowerConfig(hub={"1-4": PowerRule(off=("relay", "{hub}"), on=("relay", "{hub}"))})
    board = Board(losing_power=Switchboard(whole_hub).losing_power, a="1-4.1", below="1-4.3.1", b="1-4.2", far="2-1.1")
    for life in (Life.OFFLINE, Life.GONE, Life.CHECKING):
        board.power_cycled("b", life)
        for name in ("a", "below"):
            assert set(board.view(name).closed) == set(LeaseClass)
            assert board.view(name).closed[TUNE] == Closed("its USB power is cut with that of b", heat=False)
        assert board.view("far").closed == {}
        assert TUNE not in board.view("b").closed
    assert board.probe("a", 30.0).closed.keys() == set(LeaseClass)
    board.update("b", life=Life.READY, progress=RecoveryProgress())
    assert board.view("a").closed == board.view("below").closed == {}
    board.power_cycled("b")
    board.views.take_down("s-b", "forgotten")
    assert board.view("a").closed == {}


def test_how_many_neighbours_are_busy():
    board = Board(a="1-4.1", b="1-4.2", c="1-4.3", d="1-4.4", far="2-1.1")
    board.gates.holds = lambda name: name in {"a", "b", "far"}
    board.update("c", life=Life.PROVISIONING)
    view, views = board.view("a"), board.views.views()
    assert board.gates.busy_beside(view, views) == 2
    assert board.gates.busy_beside(replace(view, place=None), views) is None
    assert [each.name for each in others_on_hub(view, views)] == ["b", "c", "d"]


def test_what_is_said_beside_the_reasons():
    board = Board()
    assert board.gates.note("s-a") == ""
    assert board.probe("a", None).serves(BENCH)
    assert board.gates.note("s-a") == NO_THERMOMETER
    board.probe("a", 30.0)
    assert board.gates.note("s-a") == ""
    board.now_s += 600.0
    assert board.gates.note("s-a") == "its heat was read 10 min ago: nothing newer decides"
