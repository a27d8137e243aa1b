"""Over time: shares converge to weights, and nothing starves."""

import itertools
import random
from collections import Counter
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.common.selector import Selector
from farm.head.allocator.allocator import Allocator
from farm.head.allocator.model import Grant
from farm.head.allocator.reservations import Reservation
from farm.head.config import UserConfig
from tests.support.allocator import Lab, lease_request, phone
from tests.support.allocator_model import largest_matching


@pytest.mark.parametrize("lengths", [{"ann": 50, "bob": 50, "cleo": 50}, {"ann": 200, "bob": 5, "cleo": 60}], ids=str)
def test_device_seconds_converge_to_weights_however_long_the_leases(lengths):
    weights = {"ann": 1.0, "bob": 2.0, "cleo": 3.0}
    lab = Lab(*(f"phone-{number}" for number in range(12)), usage_half_life_s=3600.0, starved_s=1e9)
    lab.quotas(UserConfig(), **{user: UserConfig(weight) for user, weight in weights.items()})
    used: Counter[str] = Counter()
    randomly = random.Random(5)
    ends = {}  # device -> when, and whose
    number = itertools.count()

    def follow(grants):
        for grant in grants:
            user = grant.request_id.split("-")[0]
            length_s = lengths[user] * (0.5 + randomly.random())
            ends[grant.device] = (lab.now_s + length_s, user)
            used[user] += length_s

    def comes(user):
        follow(lab.decide(Allocator.request_added, f"{user}-{next(number)}", lease_request(user=user)))

    for user in weights:  # ann's thirty are there before anybody else has asked
        for _ in range(30):
            comes(user)
    for _ in range(6000):
        device = min(ends, key=lambda name: ends[name])
        lab.now_s, user = ends.pop(device)
        comes(user)
        follow(lab.decide(Allocator.lease_ended, device, ""))
    whole = sum(used.values())
    for user, weight in weights.items():
        assert used[user] / whole == pytest.approx(weight / 6, rel=0.1)


def test_the_phones_of_one_moment_go_to_several_users():
    lab = Lab(*(f"phone-{number}" for number in range(6)))
    lab.paused("starting")
    lab.quotas(UserConfig(), bob=UserConfig(2.0))
    for user in ("ann", "bob"):
        for number in range(10):
            lab.want(f"{user}-{number}", user=user)
    assert Counter(request.split("-")[0] for request in lab.paused()) == {"ann": 2, "bob": 4}


def test_who_used_less_is_served_first_inside_a_priority_only():
    lab = Lab("p")
    lab.decide(Allocator.usage_loaded, {"greedy": 1000.0})
    lab.want("holder", user="other")
    lab.want("urgent", user="greedy", priority=2)
    lab.want("older", user="greedy")
    lab.want("younger", user="modest")
    assert [lab.end("p") for _ in range(3)] == ["urgent", "younger", "older"]


def test_a_line_is_served_once_in_starved_s_whatever_is_more_urgent():
    lab = Lab("p", starved_s=100.0)
    lab.want("urgent-0", priority=9, user="bob")
    for number in range(3):
        lab.want(f"low-{number}", user="ann")
    served = {}
    for number in range(1, 60):  # somebody of higher priority waits at any time
        lab.want(f"urgent-{number}", priority=9, user="bob")
        lab.now_s += 10.0
        served[lab.end("p")] = lab.now_s - 1000.0
    assert [served[f"low-{number}"] for number in range(3)] == [100.0, 200.0, 300.0]
    assert len(served) == 59


def test_one_users_flood_that_starves_does_not_displace_others():
    lab = Lab("p", starved_s=100.0)
    lab.want("first", user="flood")
    for number in range(500):
        lab.want(f"flood-{number}", user="flood")
    lab.now_s += 1000.0
    for number in range(20):
        lab.want(f"new-{number}", user="new")
    served = Counter(lab.end("p").split("-")[0] for _ in range(20))
    assert served == {"flood": 1, "new": 19}


@given(
    st.lists(st.tuples(st.sampled_from("pqr"), st.integers(0, 3)), min_size=1, max_size=12), st.integers(0, 2**32 - 1)
)
@settings(max_examples=60, deadline=None)
def test_the_bound_of_starvation(queues, seed):
    """Each queue that starves when a request of it is due gets one phone, the longest first, before all others."""
    lab = Lab("p", "q", "r", starved_s=50.0)
    for name in "pqr":
        lab.want(f"holder-{name}", name, user="holder")
    users = [f"user-{number}" for number in range(len(queues))]
    for user, (key, priority) in zip(users, queues, strict=True):
        lab.want(user, key, priority, user=user)
    lab.now_s += 50.0
    randomly = random.Random(seed)
    order = {name: [user for user, (key, _) in zip(users, queues, strict=True) if key == name] for name in "pqr"}
    for number in range(3 * len(queues)):
        lab.want(f"pressing-{number}", "android", 9, user=f"presser-{number}")
        device = randomly.choice("pqr")
        served = lab.end(device)
        if order[device]:
            assert served == order[device].pop(0)
        else:
            assert served.startswith("pressing")


# --- several at once --------------------------------------------------------------------------------------------------

keys = st.sampled_from(("android", "adreno", "mali", "a", "b", "name=c"))


@given(st.lists(keys, max_size=6), st.sets(st.sampled_from("abcd"), min_size=1))
def test_as_many_as_possible_are_served_when_several_phones_come_free_at_once(wanted, devices):
    views = [phone(name, "adreno" if name in "ab" else "mali") for name in sorted(devices)]
    lab = Lab(*views)
    lab.paused("full")
    requests = {f"r{number}": lease_request(key) for number, key in enumerate(wanted)}
    for name, request in requests.items():
        lab.decide(Allocator.request_added, name, request)
    suits = {
        name: [view.name for view in views if request.selector.matches(view.labels, view.aliases)]
        for name, request in requests.items()
    }
    assert len(lab.paused()) == largest_matching(suits)


@given(st.permutations(range(9)), st.integers(0, 2))
def test_the_order_of_independent_events_does_not_change_who_gets_what(order, late):
    """While paused, everything comes in any order; what then is granted, and with it who holds what, is the same."""
    window = Reservation("w", Selector.parse("c"), frozenset({"bob"}), 0.0, 1e6)
    events = [
        *((Allocator.device_changed, phone(name, "mali" if name == "c" else "adreno")) for name in "abc"),
        (Allocator.request_added, "any", lease_request("android", 3, user="ann")),
        (Allocator.request_added, "adreno", lease_request("adreno", 2, user="bob")),
        (Allocator.request_added, "reserved", lease_request("mali", 1, user="bob")),
        (Allocator.request_added, "not for her", lease_request("mali", 4, user="cleo")),
        (Allocator.quotas_changed, UserConfig(devices=2), {}),
        (Allocator.reservations_changed, (window,)),
    ]
    labs = Lab(), Lab()
    for lab, told in zip(labs, ([events[index] for index in order], events), strict=True):
        lab.decide_each((Allocator.paused, "starting"), *told, (Allocator.paused, ""))
        assert Grant("reserved", "c") in lab.grants
        assert set(lab.holders().values()) == {"any", "adreno", "reserved"}
    assert labs[0].holders() == labs[1].holders()


@given(st.permutations(range(4)))
def test_leases_that_end_in_any_order_serve_the_same_requests(order):
    lab = Lab(*"abcd")
    for number in range(4):
        lab.want(f"holder-{number}", user=f"user-{number}")
    for name in "abcd":
        lab.want(f"next-{name}", name)
    lab.decide_each(*((Allocator.lease_ended, "abcd"[index], "") for index in order))
    assert lab.holders() == {name: f"next-{name}" for name in "abcd"}


def test_requests_of_a_user_are_served_by_place_whenever_they_came():
    """Of whatever group: the first job asks again after its attempt failed, and avoids a phone from now on."""
    lab = Lab("b", "c")
    lab.paused("not yet")
    again = partial(Allocator.request_added, place_s=lab.now_s - 60)
    older = partial(Allocator.request_added, place_s=lab.now_s - 90)
    for number in range(3):
        lab.want(f"new-{number}")
    lab.decide(again, "again", lease_request(avoid=frozenset("a")))
    lab.decide(older, "older", lease_request())
    lab.decide(again, "again too", lease_request())
    assert set(lab.paused()) == {"older", "again"}
    assert [lab.end("b") for _ in range(4)] == ["again too", "new-0", "new-1", "new-2"]
