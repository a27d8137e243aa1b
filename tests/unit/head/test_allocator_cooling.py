"""Who starves because every phone is too warm for it has one kept cool: for how long, from whom, and what is said."""

import pytest

from farm.head.allocator.allocator import Allocator
from farm.head.config import UserConfig
from farm.model.device import Closed, Life, Service
from farm.model.requests import LeaseClass
from tests.support.allocator import Lab, phone

BENCH, TUNE = LeaseClass.BENCH, LeaseClass.TUNE
WARM = "skin 41.2 °C is above 38 °C for bench"
STARVED_S, HOLD_S, SLICE_S = 100.0, 400.0, 20.0


def warm(name, opens_in_s=None, *, heat=True, **facts):
    return phone(name, closed={BENCH: Closed(WARM, opens_in_s, heat=heat)}, **facts)


def lab_of(*phones):
    return Lab(*phones, starved_s=STARVED_S, cooling_hold_s=HOLD_S, min_slice_s=SLICE_S)


def kept(lab):
    return {device: each.owner for device, each in lab.allocator._state.cooling_claims.items()}


def waits_for(seconds, lab):
    """Bob's bench comes and has waited."""
    lab.want("bench", user="bob", lease_class=BENCH, longest_s=30.0)
    lab.later(seconds)
    return lab


def starving(*phones):
    """Bob's bench has just begun to starve; whoever had phones gave them back long ago."""
    return waits_for(STARVED_S, lab_of(*phones))


def test_a_farm_kept_warm_by_tuning_serves_a_bench_after_starvation_and_one_cooling():
    """Tune leases follow each other forever, and warm the phone to 41 °C: it opens to benches 300 s after the last."""
    lab = lab_of(warm("a", 300.0))
    lab.want("t0", lease_class=TUNE)
    lab.want("bench", user="bob", lease_class=BENCH)
    began_s, tunes, cool_since_s = lab.now_s, 0, None
    while "bench" not in lab.holders().values():
        holding = lab.allocator.held.get("a")
        if holding is None:
            cool_since_s = lab.now_s if cool_since_s is None else cool_since_s
            if lab.now_s - cool_since_s >= 300.0:
                lab.changed("a")
        elif holding.asked or lab.now_s - holding.since_s > 50.0:
            tunes += 1
            lab.want(f"t{tunes}", lease_class=TUNE)
            lab.end("a")
        lab.later(5.0)
        assert lab.now_s - began_s < STARVED_S + SLICE_S + 300.0 + 60.0
    assert tunes >= 2
    assert lab.yields[-1].reason == "it is to cool for bob's bench"
    assert kept(lab) == {}


def test_while_a_phone_is_kept_cool_others_wait_and_are_told_why():
    lab = starving(warm("a", 270.0))
    assert kept(lab) == {"a": "bob's bench"}
    assert lab.want("tune", lease_class=TUNE) == ""
    assert lab.estimate_s("tune") == HOLD_S + 30.0
    assert lab.want("job", priority=9) == ""
    assert lab.why("tune", lease_class=TUNE) == {"a": "kept cool for bob's bench, about 3 min"}
    why = lab.why("bench", user="bob", lease_class=BENCH)["a"]
    assert why.endswith("; kept cool for it, 7 min more at most")
    assert lab.estimate_s("bench") == 270.0 - STARVED_S
    lab.changed("a")
    assert lab.holders() == {"a": "bench"}
    assert lab.end("a") == "job"


def test_when_nobody_knows_how_long_it_takes_the_end_of_the_claim_is_told():
    assert starving(warm("a")).why("") == {"a": "kept cool for bob's bench, 7 min at most"}


def test_a_persons_own_lease_is_not_kept_from_it_unless_it_tunes():
    lab = starving(warm("a"))
    assert lab.want("tuning", personal=True, lease_class=TUNE) == ""
    assert lab.want("person", personal=True) == "a"
    assert kept(lab) == {}  # it does not yield, and there is no other phone
    assert lab.asked() == []
    lab.decide(Allocator.lease_ended, "a", "")
    assert kept(lab) == {"a": "bob's bench"}
    assert lab.holders() == {}


def test_the_claim_passes_on_when_somebody_gets_the_phone_who_does_not_yield():
    lab = starving(warm("a", 100.0), warm("b", 200.0))
    assert kept(lab) == {"a": "bob's bench"}
    lab.later(150.0)
    assert lab.want("person", personal=True, device="a") == "a"
    assert kept(lab) == {"b": "bob's bench"}
    lab.later(HOLD_S - 150.0)  # the claim is as old as ever
    assert kept(lab) == {}


def test_a_claim_ends_and_its_line_starves_anew_before_the_next():
    lab = starving(warm("a"))
    lab.want("tune", lease_class=TUNE)
    lab.later(HOLD_S - 1.0)
    assert lab.holders() == {}
    lab.later(1.0)
    assert lab.holders() == {"a": "tune"}
    lab.later(STARVED_S - 1.0)
    assert (kept(lab), lab.asked()) == ({}, [])
    lab.later(1.0)
    assert kept(lab) == {"a": "bob's bench"}
    assert lab.asked() == ["a"]


def test_a_tune_lease_keeps_its_phone_for_its_slice():
    lab = waits_for(STARVED_S - 5.0, lab_of(warm("a", 100.0)))
    lab.want("tune", lease_class=TUNE)
    lab.later(SLICE_S - 1.0)
    assert (kept(lab), lab.asked()) == ({"a": "bob's bench"}, [])
    lab.later(1.0)
    assert lab.asked() == ["a"]


def test_who_starves_for_longer_goes_before():
    lab = lab_of(warm("a"))
    lab.want("held", personal=True)
    lab.want("tune", lease_class=TUNE)
    lab.want("bench", user="bob", lease_class=BENCH)
    lab.later(2 * STARVED_S)
    assert lab.end("a") == "tune"
    lab.later(SLICE_S)
    assert lab.asked() == ["a"]  # it has had its turn
    lab.want("more", lease_class=TUNE)
    assert lab.end("a") == ""


KEPT = {"a": "bob's bench"}


@pytest.mark.parametrize(
    ("phones", "claimed"),
    [
        ([warm("a"), warm("b", 200.0), warm("c", 150.0)], {"c": "bob's bench"}),  # the one that opens soonest
        # Of one that waits for a neighbour nobody knows whether it ever opens.
        ([warm("a"), warm("b", 5.0, heat=False)], KEPT),
        ([warm("a"), phone("b", life=Life.GONE)], KEPT),
        ([warm("a"), phone("b", service=Service.DRAINING)], KEPT),
        ([warm("a", heat=False)], {}),
    ],
    ids=["the soonest", "waits for a neighbour", "gone", "draining", "closed for other reasons"],
)
def test_the_phone_is_claimed_that_it_might_have_soon(phones, claimed):
    lab = starving(*phones)
    assert (kept(lab), lab.asked()) == (claimed, [])


@pytest.mark.parametrize(
    ("holder", "claimed", "asked"),
    [({"lease_class": TUNE}, {}, ["b"]), ({"personal": True}, KEPT, [])],
    ids=["a tuning is asked as ever", "a person is not"],
)
def test_while_somebody_has_an_open_phone(holder, claimed, asked):
    lab = lab_of(warm("a"), "b")
    lab.want("holder", device="b", **holder)
    waits_for(STARVED_S, lab)
    assert (kept(lab), lab.asked()) == (claimed, asked)


def test_a_user_who_may_have_no_more_claims_nothing():
    lab = lab_of(warm("a"), "b")
    lab.quotas(UserConfig(devices=1))
    lab.want("mine", user="bob", device="b", personal=True)
    waits_for(2 * STARVED_S, lab)
    assert kept(lab) == {}
    assert lab.end("b") == "bench"


@pytest.mark.parametrize(
    ("happens", "granted"),
    [
        ((Allocator.request_withdrawn, "bench"), {"tune": "a"}),
        ((Allocator.device_changed, phone("b")), {"bench": "b", "tune": "a"}),
    ],
    ids=["it withdraws", "it is served with another phone"],
)
def test_who_needs_the_claim_no_more_gives_it_back(happens, granted):
    lab = starving(warm("a"))
    lab.want("tune", lease_class=TUNE)
    assert {grant.request_id: grant.device for grant in lab.decide_each(happens)} == granted


def test_each_line_has_one_claim_and_each_phone_serves_one():
    lab = lab_of(warm("a", 500.0), warm("b", 600.0), warm("c", 700.0))
    lab.want("b1", user="bob", lease_class=BENCH)
    lab.want("b2", user="bob", lease_class=BENCH)
    lab.later(1.0)
    lab.want("c1", user="cleo", lease_class=BENCH)
    lab.later(STARVED_S)
    assert kept(lab) == {"a": "bob's bench", "b": "cleo's bench"}
    assert lab.want("tune", lease_class=TUNE) == "c"


def test_when_a_claim_passes_to_another_line_those_who_starve_for_longer_get_the_phone():
    lab = starving(warm("a"))
    lab.want("tune", lease_class=TUNE)
    lab.later(1.0)
    lab.want("other", user="cleo", lease_class=BENCH)
    lab.later(HOLD_S)
    assert kept(lab) == {"a": "cleo's bench"}
    assert lab.holders() == {"a": "tune"}
