"""Which phone is checked again, and when."""

import pytest

from farm.devices.health.periodic_checks import PeriodicChecks, overdue_s
from farm.devices.lifecycle import messages as m
from farm.devices.thermal.thermal_gates import ThermalGates
from farm.model.device import Life
from tests.support.fake_phone import StubAgent

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
