"""Who gets which phone: rules by example, and every order of the inputs."""

import itertools
from dataclasses import replace

import pytest

from farm.common.selector import Selector
from farm.head.allocator import explain as allocator_explain
from farm.head.allocator.allocator import Allocator
from farm.head.allocator.explain import YIELDED_S
from farm.head.allocator.model import Grant
from farm.head.allocator.waiting import REMEMBERED_REQUESTS
from farm.head.config import UserConfig
from farm.model.device import Heat, Life, Service, parse_place
from farm.model.requests import LeaseClass
from tests.support.allocator import Lab, lease_request, phone


def feed(allocator, *events):
    return [grant for happened, *facts in events for grant in happened(allocator, *facts, 0.0)]


def test_a_free_phone_is_granted_at_once():
    assert feed(
        Allocator(), (Allocator.device_changed, phone("a")), (Allocator.request_added, "r", lease_request())
    ) == [Grant("r", "a")]


def test_a_waiting_request_gets_the_phone_that_becomes_free():
    allocator = Allocator()
    assert not feed(
        allocator,
        (Allocator.request_added, "r", lease_request()),
        (Allocator.device_changed, phone("a", life=Life.CHECKING)),
    )
    assert feed(allocator, (Allocator.device_changed, phone("a"))) == [Grant("r", "a")]


def test_which_phones_are_awaited():
    allocator = Allocator()
    feed(allocator, *((Allocator.device_changed, phone(name, life=Life.GONE)) for name in "ab"))
    feed(allocator, (Allocator.request_added, "r", lease_request(device="a")))
    assert [allocator.awaits(name) for name in ("a", "b", "stranger")] == [True, False, False]
    feed(allocator, (Allocator.request_withdrawn, "r"))
    assert not allocator.awaits("a")


def test_higher_priority_first_then_first_come():
    allocator = Allocator()
    feed(
        allocator,
        *(
            (Allocator.request_added, name, lease_request(priority=priority))
            for name, priority in (("a", 1), ("b", 5), ("c", 5))
        ),
    )
    served = [feed(allocator, (Allocator.device_changed, phone("p")))[0].request_id]
    while grants := feed(allocator, (Allocator.lease_ended, "p", "")):
        served.append(grants[0].request_id)
    assert served == ["b", "c", "a"]


def test_first_come_first_served_within_one_user_whatever_is_wanted():
    lab = Lab("p")
    lab.want("holder")
    for number, text in enumerate(("android", "p", "name=p", "android")):
        lab.want(f"r{number}", text)
    assert [lab.end("p") for _ in range(5)] == ["r0", "r1", "r2", "r3", ""]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_the_order_of_arrival_never_changes_who_can_be_served(order):
    """Three requests, one phone, any order: the most urgent that came before the phone, else the next that came."""
    events = [
        (Allocator.request_added, "low", lease_request("android", 1)),
        (Allocator.request_added, "high", lease_request("adreno", 9)),
        (Allocator.request_added, "never", lease_request("mali", 99)),
        (Allocator.device_changed, phone("p", "adreno")),
    ]
    allocator = Allocator()
    grants = feed(allocator, *(events[index] for index in order))
    before = [events[index][1] for index in order[: order.index(3)] if index != 3]
    after = [events[index][1] for index in order[order.index(3) + 1 :]]
    if "high" in before:
        expected = "high"
    elif "low" in before:
        expected = "low"
    else:
        expected = next(name for name in after if name != "never")
    assert grants == [Grant(expected, "p")]
    assert {name for name, _ in allocator.waiting()} == {"low", "high", "never"} - {expected}


@pytest.mark.parametrize(
    "change",
    [
        {"life": life} for life in Life if life is not Life.READY
    ] + [{"service": Service.DRAINING}, {"service": Service.MAINTENANCE}, {"heat": Heat.COOLING}, {"adopted": False}],
    ids=str,
)  # fmt: skip
def test_what_is_not_leasable_is_not_granted_and_says_why(change):
    allocator = Allocator()
    assert not feed(
        allocator,
        (Allocator.device_changed, replace(phone("p"), **change)),
        (Allocator.request_added, "r", lease_request()),
    )
    (reason,) = allocator.explain(lease_request(), 0.0, "r")
    assert reason.matches
    assert reason.reason not in ("", "free")


def test_withdrawing_is_final_and_harmless_when_repeated():
    allocator = Allocator()
    feed(
        allocator,
        (Allocator.request_added, "r", lease_request()),
        (Allocator.request_withdrawn, "r"),
        (Allocator.request_withdrawn, "r"),
    )
    assert not feed(allocator, (Allocator.device_changed, phone("p")))
    assert not allocator.waiting()


# --- which phone ------------------------------------------------------------------------------------------------------


def test_the_common_phone_is_taken_while_nothing_is_known():
    lab = Lab(phone("m", "mali"), phone("x", "adreno"), phone("y", "adreno"))
    assert lab.want("r") == "x"


def test_of_phones_that_would_do_a_preferred_one_is_taken_if_there_is_one():
    phones = [(Allocator.device_changed, phone(name)) for name in "abc"]
    wanted = replace(lease_request(), prefer=frozenset("bz"))
    assert feed(Allocator(), *phones, (Allocator.request_added, "r", wanted)) == [Grant("r", "b")]
    assert feed(Allocator(), phones[0], (Allocator.request_added, "r", wanted)) == [Grant("r", "a")]


def test_a_phone_that_others_need_is_kept_for_them():
    lab = Lab(phone("a", "adreno"), phone("b", "adreno"), phone("z", "mali"))
    for number in range(6):  # somebody tunes for the adreno phones: request, release, again and again
        lab.end(lab.want(f"tune-{number}", "adreno"))
    assert lab.want("any") == "z"


def test_a_phone_that_a_waiting_request_needs_is_kept_for_it():
    lab = Lab(phone("a", "adreno"), phone("b", "adreno"), phone("z", "mali"), workers=1)
    lab.want("worker", "b", worker=True)
    lab.want("waits for a slot", "adreno", worker=True)
    assert lab.want("any") == "z"


def test_one_named_device_only():
    lab = Lab("a")
    assert not lab.want("r", device="b")
    assert lab.decide(Allocator.device_changed, phone("b")) == [Grant("r", "b")]


def test_avoided_phones_are_never_given():
    lab = Lab("a", "b")
    assert lab.want("r", avoid=frozenset({"a"})) == "b"
    assert not lab.want("s", avoid=frozenset({"a"}))
    assert lab.reasons("s", lease_request(avoid=frozenset({"a"})))["a"].startswith("it failed this job")


def test_a_phone_that_changes_its_labels_answers_to_the_new_ones_only():
    lab = Lab(phone("p", "adreno", life=Life.CHECKING))
    lab.want("old", "adreno")
    lab.want("new", "mali")
    assert lab.decide(Allocator.device_changed, phone("p", "mali")) == [Grant("new", "p")]
    assert lab.allocator.matching(Selector.parse("adreno")) == frozenset()


def test_a_forgotten_phone_is_gone_but_its_lease_stands():
    lab = Lab("p")
    lab.want("r")
    lab.decide_each((Allocator.device_forgotten, "p"), (Allocator.device_forgotten, "p"))
    assert not lab.want("s")
    assert not lab.allocator.answers_to("android")
    assert not lab.decide(Allocator.device_changed, phone("p"))
    assert lab.end("p") == "s"


# --- worker slots, quotas, pause, restart -----------------------------------------------------------------------------


def test_no_more_workers_than_slots_and_waiting_takes_no_slot():
    lab = Lab("a", "b", "c", workers=1)
    assert lab.want("w1", worker=True)
    assert not lab.want("w2", worker=True)
    assert lab.want("person")
    assert lab.allocator.limits(lease_request(worker=True)) == ("all 1 worker slots are taken",)
    assert {grant.request_id for grant in lab.decide(Allocator.lease_ended, "a", "")} == {"w2"}


def test_a_place_and_the_phone_it_was_freed_with_may_go_to_two_requests():
    lab = Lab(phone("a", "adreno"), phone("b", "mali"), workers=1)
    lab.want("w1", "adreno", worker=True)
    lab.want("w2", "mali", worker=True)
    lab.want("person", "adreno")
    assert set(lab.decide(Allocator.lease_ended, "a", "")) == {Grant("w2", "b"), Grant("person", "a")}


def test_each_host_has_its_worker_slots():
    lab = Lab(*(phone(f"{host}{number}", host, host=host) for host in ("one", "two") for number in (1, 2)), workers=1)
    first = lab.want("w1", worker=True)
    second = lab.want("w2", worker=True)
    assert {first[:3], second[:3]} == {"one", "two"}
    assert not lab.want("w3", worker=True)
    assert lab.allocator.limits(lease_request(worker=True)) == ("all 1 worker slots are taken on each host",)
    assert lab.want("person", "one")
    lab.decide(Allocator.slot_kept, second, "kept")
    assert not lab.end(second)
    assert lab.end(first) == "w3"
    assert [grant.request_id for grant in lab.decide(Allocator.slot_freed, "kept")] == []
    assert lab.want("w4", "two", worker=True)
    assert not lab.want("w5", "two", worker=True)
    why = lab.reasons("w5", lease_request("two", worker=True))
    assert "all 1 worker slots of two are taken" in str(why)


def test_several_workers_are_served_at_once_on_hosts_with_a_slot_each():
    lab = Lab(*(phone(f"{host}{number}", host=host) for host in ("one", "two") for number in (1, 2)), workers=1)
    lab.decide(Allocator.paused, "not yet")
    for number in range(3):
        lab.want(f"w{number}", worker=True)
    granted = lab.decide(Allocator.paused, "")
    assert sorted(grant.device[:3] for grant in granted) == ["one", "two"]


def test_a_hub_of_another_host_is_another_hub():
    place = parse_place("1-4.2")
    lab = Lab(phone("a", host="one", place=place), phone("b", host="two", place=place))
    assert lab.want("quiet", device="a", quiet_hub=True)
    assert lab.want("beside", device="b")


def test_nobody_holds_more_than_their_quota():
    lab = Lab("a", "b", "c")
    lab.decide(Allocator.quotas_changed, UserConfig(), {"alice": UserConfig(devices=1)})
    device = lab.want("r1")
    assert not lab.want("r2")
    assert lab.want("s", user="bob")
    assert lab.allocator.limits(lease_request()) == (
        "alice holds 1 device of at most 1",
    )  # said once, not for each phone
    assert "of at most" not in str(lab.reasons("r2", lease_request()))
    assert lab.end(device) in ("", "r2")
    assert "r2" in lab.holders().values()


def test_a_quota_that_is_raised_serves_those_who_wait():
    lab = Lab("a", "b")
    lab.decide(Allocator.quotas_changed, UserConfig(devices=1), {})
    lab.want("r1")
    lab.want("r2")
    assert [grant.request_id for grant in lab.decide(Allocator.quotas_changed, UserConfig(devices=2), {})] == ["r2"]


def test_nothing_is_granted_while_paused_and_as_much_as_possible_afterwards():
    lab = Lab(phone("a", "adreno"), phone("b", "mali"))
    lab.decide(Allocator.paused, "the disk is full")
    # Served in this order, "any" might take the only phone that suits "adreno".
    for name, text in (("any", "android"), ("adreno", "adreno"), ("too many", "android")):
        assert not lab.want(name, text)
    assert lab.allocator.limits(lease_request()) == ("nothing is handed out: the disk is full",)
    assert not lab.decide(Allocator.device_changed, phone("a", "adreno"))
    assert set(lab.decide(Allocator.paused, "")) == {Grant("any", "b"), Grant("adreno", "a")}


def test_a_restored_lease_counts_before_its_phone_is_known():
    lab = Lab("b", workers=1)
    lab.decide(Allocator.quotas_changed, UserConfig(devices=2), {})
    lab.decide(Allocator.lease_restored, "a", "old", lease_request(worker=True))
    assert not lab.decide(Allocator.device_changed, phone("a"))
    assert not lab.want("worker", user="bob", worker=True)
    assert lab.want("person") == "b"
    assert not lab.want("third")
    assert lab.end("a") == "worker"
    assert lab.holders() == {"b": "person", "a": "worker"}


def test_a_device_is_restored_once():
    lab = Lab()
    lab.decide(Allocator.lease_restored, "a", "old", lease_request())
    with pytest.raises(ValueError, match="held"):
        lab.decide(Allocator.lease_restored, "a", "older", lease_request())


@pytest.mark.parametrize("state", ["waiting", "holding"])
def test_an_id_may_come_once(state):
    lab = Lab(*(["p"] if state == "holding" else []))
    lab.want("r")
    with pytest.raises(ValueError, match="twice"):
        lab.want("r")


# --- memory -----------------------------------------------------------------------------------------------------------


def test_unknown_keys_leave_nothing_behind():
    allocator = Allocator()
    feed(allocator, (Allocator.device_changed, phone("p", life=Life.GONE)))
    for number in range(1000):
        feed(
            allocator,
            (Allocator.request_added, f"r{number}", lease_request(f"unknown-{number}", number, user=f"{number}")),
            (Allocator.request_withdrawn, f"r{number}"),
        )
    state = allocator._state
    assert not state.index._groups
    assert not state.queues._waiting
    assert not state.queues._tiers
    assert not state.queues._by_served_order
    assert not state.ledger._accounts


def test_history_is_bounded():
    lab = Lab("p")
    for number in range(3 * REMEMBERED_REQUESTS):
        name = f"r{number}"
        lab.want(name, f"name=p,gpu-{number % 2}=1" if number % 3 else "p", avoid=frozenset({f"{number}"}))
        lab.decide_each((Allocator.request_withdrawn, name), (Allocator.lease_ended, "p", ""))
    index = lab.allocator._state.index
    assert sum(group.recent for group in index._groups.values()) == len(index._recent) <= REMEMBERED_REQUESTS


def test_users_who_have_used_next_to_nothing_are_forgotten():
    lab = Lab("p", usage_half_life_s=10.0)
    for number in range(2000):
        lab.want(f"r{number}", user=f"user-{number}")
        lab.now_s += 1.0
        lab.end("p")
    assert len(lab.allocator._state.ledger._accounts) < 1000


# --- explain ----------------------------------------------------------------------------------------------------------


def test_explain_names_holder_queue_and_mismatch():
    lab = Lab(phone("a", "adreno"), phone("b", "mali"))
    lab.want("r1", "adreno", user="carol", longest_s=90.0)
    lab.want("urgent", "adreno", 7, user="dave")
    lab.want("older", "adreno")
    lab.want("r3", "adreno")
    lab.now_s += 30
    held, mismatch = lab.allocator.explain(lease_request("adreno"), lab.now_s, "r3")
    assert (held.device, held.matches) == ("a", True)
    assert held.reason == "held by carol for 30 s"
    assert held.evidence.splitlines() == [
        "60 s more at most",
        "behind 1 of higher priority, 1 of the same user, older",
    ]
    assert (mismatch.device, mismatch.matches) == ("b", False)
    assert "adreno" in mismatch.reason
    assert [each.reason for each in lab.allocator.explain(lease_request("mali"), lab.now_s) if each.matches] == ["free"]


def test_explaining_phones_that_nobody_holds_looks_at_nobody_who_waits(monkeypatch):
    lab = Lab(phone("a", "adreno"), phone("b", "mali"))
    for number in range(3):
        lab.want(f"r{number}", "adreno")
    looked = []
    ahead_of = allocator_explain._ahead_of
    monkeypatch.setattr(allocator_explain, "_ahead_of", lambda *given: looked.append(given) or ahead_of(*given))
    assert [each.reason for each in lab.allocator.explain(lease_request("mali"), lab.now_s) if each.matches] == ["free"]
    assert looked == []
    lab.allocator.explain(lease_request("adreno"), lab.now_s)
    assert len(looked) == 1


def tuning(lab, **more):
    return lab.want("tune", user="tuner", lease_class=LeaseClass.TUNE, longest_s=86400.0, **more)


def test_of_a_tuning_that_yields_it_is_said_when_it_is_asked_and_the_estimate_counts_on_it():
    lab = Lab("a", min_slice_s=60.0, starved_s=1800.0)
    tuning(lab)
    lab.now_s += 20
    lab.want("bench", user="bob", lease_class=LeaseClass.BENCH)
    bench = lease_request(user="bob", lease_class=LeaseClass.BENCH)
    assert lab.reasons("bench", bench)["a"] == (
        "held by tuner's tuning for 20 s; asked to give it back in 40 s at the latest"
    )
    assert lab.allocator.estimate_s("bench", lab.now_s) == 40.0 + YIELDED_S
    lab.now_s += 40
    lab.decide(Allocator.clock_advanced)
    assert lab.asked() == ["a"]
    reason = "held by tuner's tuning for 60 s; asked to give it back: before its next candidate, or at its end"
    assert lab.reasons("bench", bench)["a"] == reason
    assert lab.allocator.estimate_s("bench", lab.now_s) == YIELDED_S


def test_a_tuning_that_goes_first_is_asked_when_the_other_has_starved():
    lab = Lab("a", min_slice_s=60.0, starved_s=1800.0)
    tuning(lab, priority=7)
    lab.want("bench", user="bob")
    assert "asked to give it back in 31 min at the latest" in lab.reasons("bench", lease_request(user="bob"))["a"]
    estimate_s = lab.allocator.estimate_s("bench", lab.now_s)
    assert estimate_s == 1860.0 + YIELDED_S
    began_s = lab.now_s
    while not lab.asked():
        lab.now_s = lab.allocator.next_check_s()
        lab.decide(Allocator.clock_advanced)
    assert lab.now_s - began_s <= 1860.0


def test_a_tuning_that_ends_sooner_than_it_is_asked_is_waited_for():
    lab = Lab("a", min_slice_s=60.0)
    lab.want("tune", user="tuner", lease_class=LeaseClass.TUNE, longest_s=30.0)
    lab.want("bench", user="bob")
    assert lab.reasons("bench", lease_request(user="bob"))["a"] == "held by tuner's tuning for 0 s; 30 s more at most"
    assert lab.allocator.estimate_s("bench", lab.now_s) == 30.0
    lab.want("later", user="bob")
    [short] = lab.allocator.obstacles(lease_request(user="bob"), lab.now_s)
    assert short.reason == "held by tuner's tuning for 0 s"


def test_explain_names_those_who_had_less_and_those_who_starve():
    lab = Lab("a", starved_s=100.0)
    lab.want("r1", user="carol")
    lab.want("starved", user="carol")
    lab.now_s += 99
    lab.want("fresh", user="bob")
    lab.want("mine", user="carol", priority=1, avoid=frozenset({"x"}))
    lab.now_s += 1
    reason = lab.reasons("mine", lease_request(user="carol", avoid=frozenset({"x"})))["a"]
    assert "1 that waited too long" in reason
    assert "1 of users who have had less (bob)" in reason


def test_an_estimate_follows_the_holders_and_those_ahead():
    lab = Lab("a", "b")
    lab.want("r1", longest_s=100.0)
    lab.want("r2", longest_s=60.0)
    lab.want("first", longest_s=30.0)
    lab.want("second")
    lab.want("third")
    lab.want("fourth")
    lab.now_s += 10
    estimates = [lab.allocator.estimate_s(name, lab.now_s) for name in ("first", "second", "third", "fourth", "nobody")]
    # b is free after 50 s, then after 80 s; "second" holds it for an unknown time, a is free after 90 s.
    assert estimates == [50.0, 80.0, 90.0, None, None]
    device = next(device for device, name in lab.holders().items() if name == "r2")
    lab.decide(Allocator.lease_extended, device, 200.0)
    assert lab.allocator.estimate_s("first", lab.now_s) == 90.0


def test_no_estimate_where_nobody_can_say():
    lab = Lab("a")
    lab.want("r1")
    lab.want("waits")
    assert lab.allocator.estimate_s("waits", lab.now_s) is None
    lab.decide(Allocator.lease_extended, "a", 5.0)
    assert lab.allocator.estimate_s("waits", lab.now_s) == 5.0
    lab.decide(Allocator.paused, "full")
    assert lab.allocator.estimate_s("waits", lab.now_s) is None


def test_a_place_that_is_kept_outlasts_its_lease():
    lab = Lab("a", "b", workers=1)
    assert lab.want("tune", worker=True, longest_s=100.0)
    (device,) = lab.holders()
    lab.decide(Allocator.slot_kept, device, "slot")
    lab.end(device)
    assert lab.want("bench", worker=True) == ""
    assert lab.allocator.limits(lease_request(worker=True)) == ("all 1 worker slots are taken",)
    assert lab.allocator.estimate_s("bench", lab.now_s) == 100.0
    assert lab.want("shell") in ("a", "b")
    (grant,) = lab.decide(Allocator.slot_freed, "slot")
    assert grant.request_id == "bench"
    assert lab.decide(Allocator.slot_freed, "slot") == []


def test_a_lease_without_a_place_keeps_none():
    lab = Lab("a", workers=1)
    device = lab.want("shell")
    lab.decide_each(
        (Allocator.slot_kept, device, "slot"), (Allocator.lease_ended, device, ""), (Allocator.slot_freed, "slot")
    )
    assert lab.want("bench", worker=True) == "a"
    assert lab.want("other", worker=True) == ""


def test_only_those_that_are_named_are_given():
    lab = Lab("a", "b", "c")
    assert lab.want("none", only=frozenset()) == ""
    assert lab.want("one", only=frozenset("b")) == "b"
    assert lab.want("two", only=frozenset("b")) == ""
    waits = lease_request(only=frozenset("b"))
    assert lab.reasons("two", waits)["a"] == "it is not identical to the other phones of its job"
    assert lab.reasons("two", waits)["b"].startswith("held by")
    assert lab.end("b") == "two"
