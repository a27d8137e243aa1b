"""Tune leases give their phones back when somebody else should have them."""

import pytest

from farm.head.allocator.allocator import Allocator
from farm.head.config import UserConfig
from farm.model.device import Service
from farm.model.requests import LeaseClass
from tests.support.allocator import Lab, phone

SLICE_S = 60.0


def tune(lab, request_id="tune", user="tuner", lease_class=LeaseClass.TUNE, **more):
    return lab.want(request_id, user=user, lease_class=lease_class, **more)


def test_it_is_asked_once_after_its_slice_when_somebody_waits():
    lab = Lab("a", min_slice_s=SLICE_S)
    tune(lab)
    lab.now_s += 10
    lab.want("bench", user="bob")
    assert not lab.yields
    assert lab.allocator.next_check_s() == lab.now_s + SLICE_S - 10
    lab.later(SLICE_S)
    assert [(ask.name, ask.request_id, ask.reason) for ask in lab.yields] == [("a", "tune", "bob waits for it")]
    lab.want("more", user="cleo")
    lab.later(10 * SLICE_S)
    assert len(lab.yields) == 1
    assert lab.end("a") == "bench"


@pytest.mark.parametrize(
    ("holds", "wants", "asked"),
    [
        ({}, {}, True),
        ({"lease_class": LeaseClass.INTERACTIVE}, {}, False),
        ({"lease_class": LeaseClass.BENCH}, {}, False),
        ({}, {"text": "mali", "priority": 9}, False),
        ({}, {"avoid": frozenset({"a"}), "priority": 9}, False),
        ({"priority": 5}, {"priority": 4}, False),
        ({"priority": 5}, {"priority": 5, "user": "greedy"}, False),
        ({"priority": 5}, {"priority": 5, "user": "tuner", "lease_class": LeaseClass.TUNE}, False),
        ({}, {"user": "tuner", "lease_class": LeaseClass.BENCH}, True),
    ],
    ids=[
        "at once after its slice", "no person", "no bench", "not for whom it does not suit", "not for who avoids it",
        "not for a lower priority", "not for who had more", "not for ones own tuning", "for ones own measurement",
    ],
)  # fmt: skip
def test_who_is_asked_for_whom(holds, wants, asked):
    lab = Lab(phone("a", "adreno"), starved_s=1e9, held_counts_s=0.0)
    lab.decide(Allocator.usage_loaded, {"greedy": 1e6})
    tune(lab, **holds)
    lab.later(2 * SLICE_S)
    assert lab.allocator.next_check_s() is None
    lab.want("waits", **{"user": "bob", **wants})
    assert lab.asked() == ["a"] * asked
    lab.later(10 * SLICE_S)
    assert lab.asked() == ["a"] * asked


def test_shares_are_looked_at_again_while_somebody_waits():
    lab = Lab("a", min_slice_s=SLICE_S)
    lab.decide(Allocator.usage_loaded, {"bob": 300.0})
    tune(lab)
    lab.want("bench", user="bob")
    lab.later(4 * SLICE_S)
    assert not lab.yields  # the tuner has had less yet
    lab.later(4 * SLICE_S)
    assert lab.asked() == ["a"]


def test_for_whoever_starves():
    lab = Lab("a", starved_s=10 * SLICE_S)
    tune(lab, priority=9)
    lab.want("low", user="bob", priority=0)
    lab.later(9 * SLICE_S)
    assert not lab.yields
    lab.later(2 * SLICE_S)
    assert lab.asked() == ["a"]


def test_one_lease_is_asked_per_request_the_least_entitled_first():
    lab = Lab("a", "b", "c")
    tune(lab, "high", priority=2, device="a")
    tune(lab, "heavy", user="heavy", device="b")
    tune(lab, "light", user="light", device="c")
    lab.decide(Allocator.usage_loaded, {"heavy": 5000.0, "light": 4000.0})
    lab.later(SLICE_S)
    lab.want("bench-1", user="bob")
    assert lab.asked() == ["b"]
    lab.want("bench-2", user="bob")
    assert lab.asked() == ["b", "c"]
    lab.want("bench-3", user="bob")
    assert lab.asked() == ["b", "c"]


def test_a_phone_asked_for_somebody_who_left_goes_to_the_next_who_waits():
    lab = Lab("a", "b")
    tune(lab, "one", user="one")
    tune(lab, "two", user="two")
    lab.later(SLICE_S)
    lab.want("bench-1", user="bob")
    lab.decide(Allocator.request_withdrawn, "bench-1")
    lab.want("bench-2", user="bob")
    lab.later(10 * SLICE_S)
    assert len(lab.yields) == 1
    assert lab.end(lab.asked()[0]) == "bench-2"


def test_of_two_phones_asked_for_those_who_left_a_new_request_is_promised_one():
    lab = Lab("a", "b", "c")
    for name in ("one", "two", "three"):
        tune(lab, name, user=name)
    lab.later(SLICE_S)
    for name in ("bench-1", "bench-2"):
        lab.want(name, user="bob")
    for name in ("bench-1", "bench-2"):
        lab.decide(Allocator.request_withdrawn, name)
    lab.now_s += 2 * SLICE_S  # the third lease is due to be checked when the next request comes
    lab.want("bench-3", user="bob")
    lab.want("bench-4", user="bob")
    assert len(lab.yields) == 2


def test_a_worker_place_is_asked_for_where_that_is_all_that_is_missing():
    lab = Lab("a", "b", workers=1)
    assert tune(lab, worker=True, device="a") == "a"
    lab.later(SLICE_S)
    lab.want("bench", user="bob", device="b", worker=True)
    assert lab.asked() == ["a"]
    lab.end("a")
    assert lab.holders() == {"b": "bench"}


def test_a_phone_whose_holder_has_no_slot_to_give_does_not_help_who_needs_one():
    lab = Lab("a", "b", workers=1)
    tune(lab, device="a")
    lab.want("bench", user="cleo", device="b", worker=True)
    lab.later(SLICE_S)
    lab.want("needs both", user="bob", device="a", worker=True)
    lab.later(10 * SLICE_S)
    assert not lab.yields


def test_a_quota_that_is_reached_is_no_reason_to_ask():
    lab = Lab("a", "b")
    lab.quotas(UserConfig(devices=1))
    lab.decide(Allocator.usage_loaded, {"tuner": 5000.0})
    tune(lab, device="a")
    lab.want("has", user="bob", device="b")
    lab.later(SLICE_S)
    lab.want("more", user="bob", device="a")
    lab.later(5 * SLICE_S)
    assert not lab.yields
    lab.quotas(UserConfig(devices=2))
    lab.later(2 * SLICE_S)
    assert lab.asked() == ["a"]


def test_nobody_is_asked_for_a_phone_that_could_not_be_handed_on():
    lab = Lab("a")
    tune(lab)
    lab.later(SLICE_S)
    lab.changed(phone("a", service=Service.DRAINING))
    lab.want("bench", user="bob")
    lab.later(5 * SLICE_S)
    assert not lab.yields


def test_nobody_is_asked_while_paused():
    lab = Lab("a")
    tune(lab)
    lab.paused("full")
    lab.want("bench", user="bob")
    assert lab.allocator.next_check_s() is None
    lab.now_s += 2 * SLICE_S
    lab.decide(Allocator.clock_advanced)
    assert not lab.yields
    lab.paused()
    assert lab.asked() == ["a"]


def kept(lab, request_id="tune", user="tuner"):
    """A tune lease whose worker slot outlasts it."""
    device = tune(lab, request_id, user, worker=True)
    lab.decide(Allocator.slot_kept, device, f"slot of {request_id}")
    return device


def test_a_kept_place_is_asked_for_once_after_its_slice():
    lab = Lab("a", "b", workers=1)
    kept(lab)
    lab.want("bench", user="bob", worker=True)
    assert not lab.slots
    lab.later(SLICE_S)
    assert [(ask.name, ask.reason) for ask in lab.slots] == [("slot of tune", "bob waits for its worker slot")]
    assert lab.allocator.slots["slot of tune"].asked
    lab.later(10 * SLICE_S)
    assert len(lab.slots) == 1
    assert not lab.yields  # its phone is not what is missing
    (grant,) = lab.decide(Allocator.slot_freed, "slot of tune")
    assert grant.request_id == "bench"


def test_a_kept_place_without_a_phone_is_asked_for_at_once_after_its_slice():
    lab = Lab("a", workers=1)
    device = kept(lab)
    lab.now_s += SLICE_S
    lab.end(device)
    lab.want("bench", user="bob", worker=True)
    assert [ask.name for ask in lab.slots] == ["slot of tune"]


def test_a_kept_place_is_left_to_its_keeper_when_another_place_or_no_phone_would_do():
    lab = Lab("a", "b", workers=2)
    kept(lab)
    lab.now_s += SLICE_S
    lab.want("bench", user="bob", worker=True)  # there is a second slot
    lab.want("none", "mali", user="bob", worker=True)  # and no such phone
    lab.want("own", user="tuner", lease_class=LeaseClass.TUNE, worker=True)  # no better claim
    lab.later(SLICE_S)
    assert not lab.slots


def test_slots_are_asked_for_one_at_a_time_the_least_entitled_first():
    lab = Lab("a", "b", "c", "d", workers=2)
    kept(lab, "t1", "busy")
    lab.decide(Allocator.usage_loaded, {"busy": 5000.0})
    kept(lab, "t2", "idle")
    lab.now_s += SLICE_S
    lab.want("b1", user="bob", worker=True)
    lab.want("b2", user="cleo", worker=True)
    assert [ask.name for ask in lab.slots] == ["slot of t1"]
    lab.decide(Allocator.slot_freed, "slot of t1")
    lab.later(SLICE_S)
    assert [ask.name for ask in lab.slots] == ["slot of t1", "slot of t2"]


def test_a_tuning_makes_way_for_its_own_users_bench_before_others_of_equal_use():
    lab = Lab("a", "b")
    lab.want("t1", user="bob", lease_class=LeaseClass.TUNE)
    lab.want("t2", user="cleo", lease_class=LeaseClass.TUNE)
    lab.want("t3", user="bob", lease_class=LeaseClass.TUNE)
    lab.want("bench", user="cleo", lease_class=LeaseClass.BENCH)
    lab.now_s += 2 * SLICE_S
    lab.decide(Allocator.clock_advanced)
    assert [ask.request_id for ask in lab.yields] == ["t2"]
    assert lab.end(lab.yields[0].name) == "bench"
