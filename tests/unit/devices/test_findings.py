"""What becomes of findings: told once, given to recovery, ends of quarantines by them; which phone is checked again."""

from dataclasses import replace

import pytest

from farm.common.causes import brief
from farm.common.events import EventLog
from farm.devices.health.findings import Findings
from farm.devices.health.health_rules import MISSES, HealthConfig, ModelHealth
from farm.devices.health.periodic_checks import PeriodicChecks, overdue_s
from farm.devices.lifecycle import messages as m
from farm.devices.thermal.thermal_gates import ThermalGates
from farm.model.device import Life
from farm.model.health import Battery, DeviceFault, FindingKind, Health, Quarantine, ReleaseRule
from farm.model.identity import DeviceIdentity
from tests.support.fake_phone import StubAgent

WELL = Health(
    boot_id="b", data_free_bytes=50 * 10**9, missing=("processes",), battery=Battery(percent=50, health="good")
)
FULL = replace(WELL, data_free_bytes=10**6)
FAULT = "[ 1.000000] kgsl kgsl-3d0: GPU PAGE FAULT"


class Bench:
    """One phone that is probed by hand."""

    def __init__(self, config=None):
        self.events = EventLog()
        self.findings = Findings(config or HealthConfig(), self.events)
        self.agent = StubAgent("S1", "pixel", identity=DeviceIdentity(model="SM-A556B"), follow=4, ready_at=1.0)

    def probe(self, health, *, held=False, in_hands=False):
        self.agent.health = health
        self.agent.health_at += 10.0
        return self.findings.take(self.agent, held=held, in_hands=in_hands)

    @property
    def told(self):
        return [(event.kind, event.data["finding"]) for event in self.events.since()]

    def quarantined(self, fault, rule=ReleaseRule.WELL):
        kept = Quarantine("why", fault=fault, rule=rule)
        self.agent.state = replace(self.agent.state, life=Life.QUARANTINED, quarantine=kept)


@pytest.fixture
def bench():
    return Bench()


def test_a_finding_is_told_once_and_given_to_recovery_with_every_probe(bench):
    assert bench.probe(FULL) == ()
    assert bench.agent.findings == ()
    for _ in range(3):
        (reported,) = bench.probe(FULL)
        assert isinstance(reported, m.FaultFound)
        assert (reported.fault, brief(reported.reason)) == (DeviceFault.STORAGE, bench.agent.findings[0].cause)
    assert bench.told == [("device.finding", "data-full")]
    for _ in range(MISSES):
        assert bench.probe(WELL) == ()
    assert bench.told == [("device.finding", "data-full"), ("device.finding_over", "data-full")]
    assert bench.agent.findings == ()


@pytest.mark.parametrize("how", ["idle", "held", "a session between two probes"])
def test_a_fault_of_a_phone_that_somebody_used_since_its_check_may_be_theirs(bench, how):
    bench.probe(WELL)
    bench.probe(WELL, held=how == "held")
    bench.probe(WELL)
    if how.startswith("a session"):
        bench.agent.used_at = bench.agent.health_at + 1.0
    (reported,) = bench.probe(replace(WELL, gpu_faults=(FAULT,)))
    assert isinstance(reported, m.FaultFound)
    assert reported.used is (how != "idle")
    bench.agent.state = replace(bench.agent.state, ready_at=bench.agent.health_at + 1.0)  # checked
    bench.probe(replace(WELL, gpu_faults=(FAULT,)))
    (again,) = bench.probe(replace(WELL, gpu_faults=(FAULT, FAULT.replace("1.0", "2.0"))))
    assert isinstance(again, m.FaultFound)
    assert not again.used


def test_the_same_probe_looked_at_again_says_nothing(bench):
    bench.probe(FULL)
    assert bench.findings.take(bench.agent, held=False, in_hands=False) == ()
    assert bench.told == []


def test_a_quarantine_that_ends_by_itself_ends_when_its_finding_is_over(bench):
    bench.probe(FULL)
    bench.probe(FULL)
    bench.quarantined(DeviceFault.STORAGE)
    assert [bench.probe(WELL) for _ in range(MISSES)] == [(), (), (m.FaultCleared(DeviceFault.STORAGE),)]


def test_after_a_restart_of_the_daemon_the_first_probes_decide(bench):
    bench.quarantined(DeviceFault.STORAGE)
    edge = replace(WELL, data_free_bytes=250 * 10**6)  # enough for a phone that was never full
    assert m.FaultCleared(DeviceFault.STORAGE) not in bench.probe(edge)
    assert m.FaultCleared(DeviceFault.STORAGE) not in bench.probe(edge)
    assert Bench().probe(edge) == ()


def test_a_probe_that_could_not_read_it_ends_no_quarantine(bench):
    bench.quarantined(DeviceFault.STORAGE)
    assert bench.probe(replace(WELL, data_free_bytes=None)) == ()
    assert bench.probe(WELL) == (m.FaultCleared(DeviceFault.STORAGE),)


def test_a_quarantine_for_a_person_is_never_ended(bench):
    bench.quarantined(DeviceFault.BATTERY, ReleaseRule.PERSON)
    assert [bench.probe(WELL) for _ in range(5)] == [()] * 5


def test_faults_in_the_log_before_farm_came_are_no_news_and_a_check_deals_with_later_ones(bench):
    old = replace(WELL, gpu_faults=(FAULT.replace("1.0", "0.5"),))
    new = replace(WELL, gpu_faults=(*old.gpu_faults, FAULT))
    assert bench.probe(old) == ()
    (reported,) = bench.probe(new)
    assert isinstance(reported, m.FaultFound)
    assert reported.fault is DeviceFault.GPU
    bench.agent.state = replace(bench.agent.state, ready_at=25.0)  # it was checked
    assert [bench.probe(new) for _ in range(MISSES)] == [()] * MISSES
    assert bench.told == [("device.finding", "gpu-fault"), ("device.finding_over", "gpu-fault")]


def test_another_server_has_no_probe_before(bench):
    bench.probe(WELL)
    bench.agent.state = replace(bench.agent.state, follow=9)
    assert bench.probe(replace(WELL, boot_id="other")) == ()
    assert bench.told == []


def test_a_model_may_be_exempt():
    bench = Bench(HealthConfig(model={"SM-A556B": ModelHealth(ignore=(FindingKind.DATA_FULL,))}))
    assert [bench.probe(FULL) for _ in range(3)] == [()] * 3


def test_what_a_person_released_it_with_counts_again_when_the_phone_says_something_else(bench):
    def says(word):
        return replace(WELL, battery=Battery(percent=50, health=word))

    bench.probe(says("dead"))
    assert [each.fault for each in bench.probe(says("dead"))] == [DeviceFault.BATTERY]
    bench.findings.released(bench.agent)
    assert [bench.probe(says("dead")) for _ in range(3)] == [()] * 3
    assert bench.probe(WELL) == ()  # one probe that does not say so changes nothing
    assert bench.probe(says("dead")) == ()
    assert [each.cause for each in bench.agent.findings] == ["the phone calls its battery dead"]
    assert [each.fault for each in bench.probe(says("failure"))] == [DeviceFault.BATTERY]
    assert [each.fault for each in bench.probe(says("dead"))] == [DeviceFault.BATTERY]


def test_a_hint_calls_adb_for_this_phone_at_its_server(bench: Bench) -> None:
    for _ in range(2):
        bench.probe(FULL)
    (finding,) = bench.agent.findings
    assert finding.hint.endswith("adb -P 5038 -s S1 shell du -h -d 1 /data/local/tmp")


HOUR_S = 3600.0


def agent(name, ready_at=0.0, **state):
    return StubAgent(name.upper(), name, ready_at=ready_at, **state)


def sanity(*agents, held="", every_h=6.0):
    gates = ThermalGates()
    gates.holds = lambda name: name == held
    return PeriodicChecks(lambda: agents, gates, every_h, monotonic=lambda: 10 * HOUR_S)


def test_the_phone_whose_check_is_longest_ago_is_checked_one_at_a_look():
    late, later, fresh = agent("late", 3 * HOUR_S), agent("later", 1 * HOUR_S), agent("fresh", 9 * HOUR_S)
    sanity(late, later, fresh).check_next()
    assert (late.told, later.told, fresh.told) == ([], [m.PlainEvent.PROVISIONING_DUE], [])


def test_a_phone_that_somebody_has_is_never_checked():
    held = agent("held")
    sanity(held, held="held").check_next()
    assert held.told == []


@pytest.mark.parametrize(
    ("life", "facts"),
    [(Life.CHECKING, {}), (Life.QUARANTINED, {}), (Life.GONE, {}), (Life.READY, {"bundle_override": "b2"})],
)
def test_what_is_on_its_way_to_a_check_or_lent_waits(life, facts):
    assert overdue_s(agent("a", life=life, **facts).state, HOUR_S, 10 * HOUR_S) is None


def test_never_means_never_until_the_configuration_is_read_again():
    phone = agent("a")
    checks = sanity(phone, every_h=0.0)
    checks.check_next()
    assert phone.told == []
    checks.use(6.0)
    checks.check_next()
    assert phone.told == [m.PlainEvent.PROVISIONING_DUE]
