"""Accounts on the growing scale beside the plain integral."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.head.allocator.allocator import Allocator
from farm.head.allocator.model import AllocatorPolicy
from farm.head.allocator.shares import MAX_EXPONENT, UsageLedger
from farm.head.config import UserConfig
from farm.model.device import Life
from tests.support.allocator import Lab, phone

HALF_LIFE_S = 100.0
RATE = math.log(2) / HALF_LIFE_S


@pytest.fixture
def ledger():
    return UsageLedger(HALF_LIFE_S, 0.0)


def integral(leases, now_s):
    return sum(
        (2 ** ((min(end, now_s) - now_s) / HALF_LIFE_S) - 2 ** ((begin - now_s) / HALF_LIFE_S)) / RATE
        for begin, end in leases
        if begin <= now_s
    )


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0.001, 1e4)), max_size=8), st.floats(0, 3e4), st.floats(0, 1e9))
def test_usage_is_the_decayed_integral_of_what_was_held(spans, now_s, origin_s):
    leases = [(begin, begin + length) for begin, length in spans]
    events = sorted([(begin, 0) for begin, _ in leases] + [(end, 1) for _, end in leases])
    ledger = UsageLedger(HALF_LIFE_S, 0.0)
    ledger.load({}, origin_s)
    for at_s, ends in events:
        if at_s <= now_s:
            (ledger.give_back if ends else ledger.take)("ann", origin_s + at_s)
    assert ledger.usage_s("ann", origin_s + now_s) == pytest.approx(integral(leases, now_s), rel=1e-6, abs=1e-4)
    assert ledger.held("ann") == sum(begin <= now_s < end for begin, end in leases if begin <= now_s and end > now_s)


def test_what_was_loaded_decays_beside_what_runs(ledger):
    ledger.take("ann", 0.0)
    ledger.load({"ann": 80.0, "bob": 40.0}, 100.0)
    assert ledger.usage_s("ann", 100.0) == pytest.approx(80.0)
    assert ledger.usage_s("ann", 200.0) == pytest.approx(40.0 + integral([(0, 100)], 100))
    assert ledger.usage_s("bob", 200.0) == pytest.approx(20.0)


def test_turns_are_by_weight_and_count_what_is_held():
    ledger = UsageLedger(HALF_LIFE_S, 30.0)
    ledger.set_quotas(UserConfig(1.0), {"heavy": UserConfig(2.0)})
    ledger.load({"heavy": 100.0, "light": 100.0, "other": 10.0}, 0.0)
    ledger.take("other", 0.0)
    turns = ledger.weighted_use(dict.fromkeys(("heavy", "light", "other", "new")), 0.0)
    assert turns == pytest.approx({"heavy": 50.0, "light": 100.0, "other": 40.0, "new": 0.0})
    assert ledger.weighted_use_of("other", 0.0, without=1) == pytest.approx(10.0)


def test_the_scale_starts_anew_without_anybody_noticing(ledger):
    ledger.take("ann", 0.0)
    ledger.load({"bob": 1000.0}, 0.0)
    steps = 20 * MAX_EXPONENT
    for step in range(steps + 1):
        used_s = ledger.usage_s("ann", step * HALF_LIFE_S)
    assert used_s == pytest.approx(1 / RATE)
    assert ledger.usage_s("bob", steps * HALF_LIFE_S) == pytest.approx(0.0)


def test_quotas(ledger):
    ledger.set_quotas(UserConfig(devices=1), {"free": UserConfig()})
    assert ledger.may_hold_more("ann")
    ledger.take("ann", 0.0)
    assert not ledger.may_hold_more("ann")
    ledger.give_back("ann", 1.0)
    assert ledger.may_hold_more("ann")
    for _ in range(5):
        ledger.take("free", 0.0)
    assert ledger.may_hold_more("free")


def begin_cleaning(lab, *names):
    for name in names:
        lab.changed(phone(name, life=Life.RECOVERING))


def test_a_user_is_charged_until_their_phone_is_cleaned_and_checked():
    """One-second jobs with ten seconds of cleaning cost more than three-second jobs with two, at fewer held seconds."""
    lab = Lab("a", "b")
    for _ in range(10):
        for user, device, held_s, cleaning_s in (("short", "a", 1.0, 10.0), ("long", "b", 3.0, 2.0)):
            lab.want(f"{user}-{lab.now_s}", device=device, user=user)
            lab.later(held_s)
            begin_cleaning(lab, device)
            lab.end(device)
            lab.later(cleaning_s)
            lab.changed(phone(device, life=Life.CHECKING))
            lab.changed(device)
            lab.later(5.0)  # idle: nobody's
    ledger = lab.allocator._state.ledger
    assert ledger.usage_s("short", lab.now_s) == pytest.approx(110.0, rel=0.01)
    assert ledger.usage_s("long", lab.now_s) == pytest.approx(50.0, rel=0.01)
    turns = ledger.weighted_use({"short": None, "long": None}, lab.now_s)
    assert turns["long"] < turns["short"]


def test_what_is_cleaned_is_in_no_quota():
    lab = Lab("a", "b")
    lab.quotas(UserConfig(1.0, 1))
    lab.want("one", device="a")
    begin_cleaning(lab, "a")
    lab.end("a")
    assert lab.want("two", device="b") == "b"


@pytest.mark.parametrize(
    "lost",
    [(Allocator.device_changed, phone("a", life=Life.GONE)), (Allocator.device_forgotten, "a")],
    ids=("gone", "forgotten"),
)
def test_nobody_is_charged_for_a_phone_that_is_lost_or_takes_long(lost):
    lab = Lab("a", "b")
    lab.want("one", device="a")
    lab.want("two", device="b", user="bob")
    begin_cleaning(lab, "a", "b")
    lab.end("a")
    lab.end("b")
    lab.later(10.0)
    lab.decide(*lost)
    lab.later(3600.0)
    lab.decide(Allocator.clock_advanced)
    ledger = lab.allocator._state.ledger
    decayed = 2 ** (-3600.0 / AllocatorPolicy().usage_half_life_s)
    assert ledger.usage_s("alice", lab.now_s) == pytest.approx(10.0 * decayed, rel=0.01)
    assert ledger.usage_s("bob", lab.now_s) == pytest.approx(120.0 * decayed, rel=0.01)
    lab.changed("b")
    assert ledger.usage_s("bob", lab.now_s) == pytest.approx(120.0 * decayed, rel=0.01)


def test_a_phone_that_is_ready_at_the_end_of_a_lease_costs_nothing_more():
    lab = Lab("a")
    lab.want("one")
    lab.later(10.0)
    lab.end("a")
    lab.later(100.0)
    begin_cleaning(lab, "a")  # its own trouble
    lab.later(100.0)
    assert lab.allocator._state.ledger.usage_s("alice", lab.now_s) == pytest.approx(10.0, rel=0.01)
