"""The gates over a board: views, events, neighbours on a hub."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from farm.common.events import EventLog
from farm.devices.lifecycle.recovery import RecoveryAction, RecoveryProgress
from farm.devices.power.power_rules import PowerConfig, PowerRule
from farm.devices.power.switchboard import Switchboard
from farm.devices.thermal.thermal_gates import ThermalGates, others_on_hub
from farm.devices.thermal.thermal_rules import NO_THERMOMETER, HeatConfig, HeatLimits, ModelHeat
from farm.devices.views import DeviceViews
from farm.model.device import Closed, Heat, Life, parse_place
from farm.model.health import DeviceFault, Health, SensorGroup, Temperature, ThrottleStatus
from farm.model.identity import DeviceIdentity
from farm.model.requests import LeaseClass
from tests.support.fake_phone import StubAgent

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


def test_a_port_of_its_own_takes_nobody_along():
    board = Board(losing_power=Switchboard().losing_power, a="1-4.1", b="1-4.2")
    board.power_cycled("b")
    assert board.view("a").serves(TUNE)


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
