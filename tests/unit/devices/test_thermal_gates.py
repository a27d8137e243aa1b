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
from farm.model.device import Closed, Heat, Life, Service, UsbPlace
from farm.model.health import DeviceFault, Health, SensorGroup, Temperature, ThrottleStatus
from farm.model.requests import LeaseClass

BENCH, TUNE, INTERACTIVE = LeaseClass.BENCH, LeaseClass.TUNE, LeaseClass.INTERACTIVE


class Bench:
    """A board with agents that are nothing but their facts, and a clock."""

    def __init__(self, heat=None, losing_power=lambda *_: ()):
        self.now_s = 100.0
        self.gates = ThermalGates(heat, monotonic=lambda: self.now_s)
        self.events = EventLog()
        registry = SimpleNamespace(called=lambda *_, **__: ("", {}, ()))
        self.board = DeviceViews(registry, self.events, self.gates, losing_power)
        self.told = []
        self.board.subscribe(self.told.append)
        self.agents = {}

    def agent(self, name, life=Life.READY, path="", model="SM-A556B"):
        hub, _, port = path.rpartition(".")
        place = UsbPlace(hub, int(port), path) if path else None
        state = SimpleNamespace(
            life=life,
            service=Service.IN,
            reason="",
            adopted=True,
            bundle="",
            hint="",
            progress=RecoveryProgress(),
            quarantine=None,
        )
        self.agents[name] = SimpleNamespace(
            name=name, serial=f"s-{name}", state=state, identity=SimpleNamespace(model=model), temperature_c=None,
            temperature_of="", battery_percent=None, since=None, health=None, health_at=0.0, read_at=None, place=place,
            findings=(), checked="", external_cause="", withheld="",
        )  # fmt: skip
        self.board.update(self.agents[name])
        return self.agents[name]

    def lives(self, name, life):
        self.agents[name].state.life = life
        self.board.update(self.agents[name])

    def probe(self, name, skin_c, *, after_s=10.0, **more):
        self.now_s += after_s
        agent = self.agents[name]
        found = () if skin_c is None else (Temperature("skin", skin_c, SensorGroup.SKIN, "test"),)
        agent.health, agent.health_at = Health(temperatures=found, **more), self.now_s
        self.board.update(agent)
        return self.view(name)

    def view(self, name):
        return self.board.view(f"s-{name}")

    def news(self):
        return [
            (event.kind, event.data["classes"])
            for event in self.events.since()
            if event.kind in ("device.cooling", "device.cool")
        ]


def test_a_phone_above_the_last_limit_is_no_ones():
    bench = Bench()
    bench.agent("a")
    assert bench.probe("a", 60.0).too_hot == ""
    assert bench.probe("a", 66.0).too_hot == "skin 66.0 °C is above 65 °C, where every lease ends"


def test_a_warm_phone_is_closed_to_bench_and_ready_for_others():
    bench = Bench()
    bench.agent("a")
    view = bench.probe("a", 41.2)
    assert set(view.closed) == {BENCH}
    assert (view.heat, view.leasable) == (Heat.OK, True)
    assert (view.serves(BENCH), view.serves(TUNE)) == (False, True)


def test_a_hard_limit_is_cooling_for_everybody():
    bench = Bench()
    bench.agent("a")
    view = bench.probe("a", 30.0, throttle=ThrottleStatus.CRITICAL)
    assert (set(view.closed), view.heat, view.leasable) == (set(LeaseClass), Heat.COOLING, False)


def test_news_comes_when_a_class_closes_or_opens_and_not_with_every_reading():
    bench = Bench()
    bench.agent("a")
    for skin_c in (30.0, 41.0, 41.1, 41.3, 43.5, 43.6, 40.0, 39.9, 39.8, 35.0, 35.0, 35.0):
        bench.probe("a", skin_c)
    assert bench.news() == [
        ("device.cooling", ["bench"]), ("device.cooling", ["tune"]), ("device.cool", ["tune"]),
        ("device.cool", ["bench"]),
    ]  # fmt: skip
    reasons = [event.data["reason"] for event in bench.events.since() if event.kind == "device.cooling"]
    assert reasons == ["skin 41.0 °C is above 38 °C for bench", "skin 43.5 °C is above 43 °C for tune"]


def test_the_same_probe_shown_again_counts_once():
    bench = Bench()
    bench.agent("a")
    bench.probe("a", 41.0)
    bench.probe("a", 35.0)
    for _ in range(5):
        bench.now_s += 10.0
        bench.board.update(bench.agents["a"])  # something else about it changed; no new reading
    assert set(bench.view("a").closed) == {BENCH}


def test_a_phone_that_is_held_teaches_nothing_about_cooling():
    bench = Bench()
    bench.agent("a")
    bench.gates.holds = lambda name: name == "a"
    for skin_c in (41.0, 40.0, 39.0):
        bench.probe("a", skin_c)
    thermal = bench.gates._devices["s-a"].thermal
    assert thermal.curves[SensorGroup.SKIN].segment == ()


def test_a_model_has_limits_of_its_own():
    bench = Bench(HeatConfig(model={"SM-A556B": ModelHeat(bench=HeatLimits(skin_c=42.0))}))
    bench.agent("a")
    bench.agent("b", model="Pixel 7")
    assert bench.probe("a", 41.0).serves(BENCH)
    assert not bench.probe("b", 41.0).serves(BENCH)


@pytest.mark.parametrize("life", [Life.PROVISIONING, Life.RECOVERING])
def test_bench_waits_while_a_neighbour_is_loud(life):
    bench = Bench()
    bench.agent("a", path="1-4.1")
    bench.agent("b", path="1-4.2")
    bench.agent("far", path="2-1.1")
    bench.agent("nowhere")
    bench.lives("b", life)
    assert bench.view("a").closed[BENCH].reason == "b on the same hub is being set up or recovered"
    assert bench.view("a").serves(TUNE)
    assert all(bench.view(name).serves(BENCH) for name in ("far", "nowhere"))
    assert bench.news() == []
    bench.lives("b", Life.READY)
    assert bench.view("a").serves(BENCH)
    assert bench.told[-1] == bench.view("a")


@pytest.mark.parametrize(
    ("action", "disturbs"),
    [(RecoveryAction.REBOOT, True), (RecoveryAction.POWER_CYCLE, True), (RecoveryAction.REPUSH, False)],
)
def test_a_neighbour_that_was_sent_away_disturbs_until_it_is_back(action, disturbs):
    bench = Bench()
    bench.agent("a", path="1-4.1")
    bench.agent("b", path="1-4.2")
    bench.agents["b"].state.progress = RecoveryProgress().begin(action, DeviceFault.SERVER, "an operator wants it", 1.0)
    for life in (Life.GONE, Life.OFFLINE, Life.IDENTIFYING, Life.STARTING, Life.CHECKING):
        bench.lives("b", life)
        assert bench.view("a").serves(BENCH) is not disturbs
        assert bench.gates.busy_beside(bench.view("a"), bench.board.views()) == disturbs
    bench.agents["b"].state.progress = RecoveryProgress()  # its time to return is over, or it is back
    bench.lives("b", Life.CHECKING)
    assert bench.view("a").serves(BENCH)


def test_a_loud_neighbour_that_is_forgotten_or_moved_is_loud_no_more():
    bench = Bench()
    bench.agent("a", path="1-4.1")
    bench.agent("b", path="1-4.2", life=Life.PROVISIONING)
    assert not bench.view("a").serves(BENCH)
    bench.agents["b"].place = UsbPlace("3-1", 1, "3-1.1")
    bench.board.update(bench.agents["b"])
    assert bench.view("a").serves(BENCH)
    bench.agents["b"].place = UsbPlace("1-4", 2, "1-4.2")
    bench.board.update(bench.agents["b"])
    assert not bench.view("a").serves(BENCH)
    bench.board.take_down("s-b", "forgotten")
    assert bench.view("a").serves(BENCH)


def test_who_loses_power_with_another_is_nobodys_until_that_one_is_back():
    whole_hub = PowerConfig(hub={"1-4": PowerRule(off=("relay", "{hub}"), on=("relay", "{hub}"))})
    bench = Bench(losing_power=Switchboard(whole_hub).losing_power)
    for name, path in (("a", "1-4.1"), ("below", "1-4.3.1"), ("b", "1-4.2"), ("far", "2-1.1")):
        bench.agent(name, path=path)
    bench.agents["b"].state.progress = RecoveryProgress().begin(
        RecoveryAction.POWER_CYCLE, DeviceFault.OFFLINE, "it is offline", 1.0
    )
    for life in (Life.OFFLINE, Life.GONE, Life.CHECKING):
        bench.lives("b", life)
        for name in ("a", "below"):
            assert set(bench.view(name).closed) == set(LeaseClass)
            assert bench.view(name).closed[TUNE] == Closed("its USB power is cut with that of b", heat=False)
        assert bench.view("far").closed == {}
        assert TUNE not in bench.view("b").closed
    assert bench.probe("a", 30.0).closed.keys() == set(LeaseClass)
    bench.agents["b"].state.progress = RecoveryProgress()
    bench.lives("b", Life.READY)
    assert bench.view("a").closed == bench.view("below").closed == {}
    bench.agents["b"].state.progress = RecoveryProgress().begin(
        RecoveryAction.POWER_CYCLE, DeviceFault.OFFLINE, "it is offline", 1.0
    )
    bench.lives("b", Life.OFFLINE)
    bench.board.take_down("s-b", "forgotten")
    assert bench.view("a").closed == {}


def test_a_port_of_its_own_takes_nobody_along():
    bench = Bench(losing_power=Switchboard().losing_power)
    bench.agent("a", path="1-4.1")
    bench.agent("b", path="1-4.2")
    bench.agents["b"].state.progress = RecoveryProgress().begin(
        RecoveryAction.POWER_CYCLE, DeviceFault.OFFLINE, "it is offline", 1.0
    )
    bench.lives("b", Life.OFFLINE)
    assert bench.view("a").serves(TUNE)


def test_heat_is_the_reason_when_both_close():
    bench = Bench()
    bench.agent("a", path="1-4.1")
    bench.agent("b", path="1-4.2", life=Life.PROVISIONING)
    assert bench.probe("a", 41.0).closed[BENCH].reason.startswith("skin 41.0")


def test_how_many_neighbours_are_busy():
    bench = Bench()
    for number, name in enumerate("abcd"):
        bench.agent(name, path=f"1-4.{number + 1}")
    bench.agent("far", path="2-1.1")
    bench.gates.holds = lambda name: name in {"a", "b", "far"}
    bench.lives("c", Life.PROVISIONING)
    views = bench.board.views()
    assert bench.gates.busy_beside(bench.view("a"), views) == 2
    assert bench.gates.busy_beside(replace(bench.view("a"), place=None), views) is None
    assert [view.name for view in others_on_hub(bench.view("a"), views)] == ["b", "c", "d"]


def test_what_is_said_beside_the_reasons():
    bench = Bench()
    bench.agent("a")
    assert bench.gates.note("s-a") == ""
    bench.probe("a", None)
    assert bench.gates.note("s-a") == NO_THERMOMETER
    assert bench.view("a").serves(BENCH)
    bench.probe("a", 30.0)
    assert bench.gates.note("s-a") == ""
    bench.now_s += 600.0
    assert bench.gates.note("s-a") == "its heat was read 10 min ago: nothing newer decides"
