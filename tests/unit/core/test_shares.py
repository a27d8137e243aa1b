"""Accounts on the growing scale beside the plain integral."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.core.shares import MAX_EXPONENT, Ledger, Share

HALF_LIFE_S = 100.0
RATE = math.log(2) / HALF_LIFE_S


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
    ledger = Ledger(HALF_LIFE_S, 0.0)
    ledger.load({}, origin_s)
    for at_s, ends in events:
        if at_s <= now_s:
            (ledger.give_back if ends else ledger.take)("ann", origin_s + at_s)
    assert ledger.usage_s("ann", origin_s + now_s) == pytest.approx(integral(leases, now_s), rel=1e-6, abs=1e-4)
    assert ledger.held("ann") == sum(begin <= now_s < end for begin, end in leases if begin <= now_s and end > now_s)


def test_what_was_loaded_decays_beside_what_runs():
    ledger = Ledger(HALF_LIFE_S, 0.0)
    ledger.take("ann", 0.0)
    ledger.load({"ann": 80.0, "bob": 40.0}, 100.0)
    assert ledger.usage_s("ann", 100.0) == pytest.approx(80.0)
    assert ledger.usage_s("ann", 200.0) == pytest.approx(40.0 + integral([(0, 100)], 100))
    assert ledger.usage_s("bob", 200.0) == pytest.approx(20.0)


def test_turns_are_by_weight_and_count_what_is_held():
    ledger = Ledger(HALF_LIFE_S, 30.0)
    ledger.set_shares(Share(1.0), {"heavy": Share(2.0)})
    ledger.load({"heavy": 100.0, "light": 100.0, "other": 10.0}, 0.0)
    ledger.take("other", 0.0)
    turns = ledger.turns(dict.fromkeys(("heavy", "light", "other", "new")), 0.0)
    assert turns == pytest.approx({"heavy": 50.0, "light": 100.0, "other": 40.0, "new": 0.0})
    assert ledger.turn("other", 0.0, without=1) == pytest.approx(10.0)


def test_the_scale_starts_anew_without_anybody_noticing():
    ledger = Ledger(HALF_LIFE_S, 0.0)
    ledger.take("ann", 0.0)
    ledger.load({"bob": 1000.0}, 0.0)
    later_s = (MAX_EXPONENT + 1) * HALF_LIFE_S
    for step in range(20 * MAX_EXPONENT):
        ledger.usage_s("ann", step * HALF_LIFE_S)
    now_s = 20 * MAX_EXPONENT * HALF_LIFE_S
    assert now_s > later_s
    assert ledger.usage_s("ann", now_s) == pytest.approx(1 / RATE)
    assert ledger.usage_s("bob", now_s) == pytest.approx(0.0)


def test_quotas():
    ledger = Ledger(HALF_LIFE_S, 0.0)
    ledger.set_shares(Share(devices=1), {"free": Share()})
    assert ledger.may_hold_more("ann")
    ledger.take("ann", 0.0)
    assert not ledger.may_hold_more("ann")
    ledger.give_back("ann", 1.0)
    assert ledger.may_hold_more("ann")
    for _ in range(5):
        ledger.take("free", 0.0)
    assert ledger.may_hold_more("free")
