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

ADRENO_A, ADRENO_B, MALI_B, MALI_Z = (
    phone(name, gpu) for name, gpu in (("a", "adreno"), ("b", "adreno"), ("b", "mali"), ("z", "mali"))
)


def test_which_phones_are_awaited():
    lab = Lab(*(phone(name, life=Life.GONE) for name in "ab"))
    lab.want("r", device="a")
    assert [lab.allocator.awaits(name) for name in ("a", "b", "stranger")] == [True, False, False]
    lab.decide_each((Allocator.request_withdrawn, "r"), (Allocator.request_withdrawn, "r"))
    assert (lab.allocator.awaits("a"), lab.allocator.waiting(), lab.changed("a")) == (False, (), {})


def test_higher_priority_first_then_first_come_whatever_is_wanted():
    lab = Lab("p")
    lab.want("holder")
    for name, text, priority in (("a", "android", 1), ("b", "p", 5), ("c", "name=p", 5), ("d", "android", 5)):
        lab.want(name, text, priority)
    assert [lab.end("p") for _ in range(5)] == ["b", "c", "d", "a", ""]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_the_order_of_arrival_never_changes_who_can_be_served(order):
    """Three requests, one phone, any order: the most urgent that came before the phone, else the next that came."""
    events = [
        (Allocator.request_added, "low", lease_request("android", 1)),
        (Allocator.request_added, "high", lease_request("adreno", 9)),
        (Allocator.request_added, "never", lease_request("mali", 99)),
        (Allocator.device_changed, phone("p", "adreno")),
    ]
    lab = Lab()
    grants = lab.decide_each(*(events[index] for index in order))
    before, after = (
        [events[index][1] for index in part] for part in (order[: order.index(3)], order[order.index(3) + 1 :])
    )
    served = [name for name in ("high", "low") if name in before] or [name for name in after if name != "never"]
    assert grants == [Grant(served[0], "p")]
    assert {name for name, _ in lab.allocator.waiting()} == {"low", "high", "never"} - {served[0]}


@pytest.mark.parametrize(
    "change",
    [
        {"life": life} for life in Life if life is not Life.READY
    ] + [{"service": Service.DRAINING}, {"service": Service.MAINTENANCE}, {"heat": Heat.COOLING}, {"adopted": False}],
    ids=str,
)  # fmt: skip
def test_what_is_not_leasable_is_not_granted_and_says_why(change):
    lab = Lab(replace(phone("p"), **change))
    assert not lab.want("r")
    (reason,) = lab.allocator.explain(lease_request(), 0.0, "r")
    assert reason.matches
    assert reason.reason not in ("", "free")


# --- which phone ------------------------------------------------------------------------------------------------------


def test_the_common_phone_is_taken_while_nothing_is_known_and_what_others_need_is_kept_for_them():
    assert Lab(phone("m", "mali"), phone("x", "adreno"), phone("y", "adreno")).want("r") == "x"
    lab = Lab(ADRENO_A, ADRENO_B, MALI_Z)
    for number in range(6):  # somebody tunes for the adreno phones: request, release, again and again
        lab.end(lab.want(f"tune-{number}", "adreno"))
    assert lab.want("any") == "z"


def test_a_phone_that_a_waiting_request_needs_is_kept_for_it():
    lab = Lab(ADRENO_A, ADRENO_B, MALI_Z, workers=1)
    lab.want("worker", "b", worker=True)
    lab.want("waits for a slot", "adreno", worker=True)
    assert lab.want("any") == "z"


def test_which_of_the_phones_a_request_names():
    lab = Lab("a", "b", "c", "d")
    assert lab.want("prefers", prefer=frozenset("bz")) == "b"
    assert lab.want("prefers in vain", prefer=frozenset("bz")) == "a"
    assert not lab.want("another", device="e")
    assert lab.changed("e") == {"another": "e"}
    assert not lab.want("none", only=frozenset())
    assert lab.want("one", only=frozenset("c")) == "c"
    assert not lab.want("two", only=frozenset("c"))
    why = lab.why("two", only=frozenset("c"))
    assert why["a"] == "it is not identical to the other phones of its job"
    assert why["c"].startswith("held by")
    assert lab.end("c") == "two"
    assert not lab.want("avoids", avoid=frozenset("d"))
    assert lab.why("avoids", avoid=frozenset("d"))["d"].startswith("it failed this job")
    assert lab.end("a") == "avoids"


def test_a_phone_that_changes_its_labels_answers_to_the_new_ones_only():
    lab = Lab(phone("p", "adreno", life=Life.CHECKING))
    lab.want("old", "adreno")
    lab.want("new", "mali")
    assert lab.changed(phone("p", "mali")) == {"new": "p"}
    assert lab.allocator.matching(Selector.parse("adreno")) == frozenset()


def test_a_forgotten_phone_is_gone_but_its_lease_stands():
    lab = Lab("p")
    lab.want("r")
    lab.decide_each((Allocator.device_forgotten, "p"), (Allocator.device_forgotten, "p"))
    assert not lab.want("s")
    assert not lab.allocator.answers_to("android")
    assert not lab.changed("p")
    assert lab.end("p") == "s"


# --- worker slots, quotas, pause, restart -----------------------------------------------------------------------------


def test_no_more_workers_than_slots_and_waiting_takes_no_slot():
    lab = Lab(phone("a", "adreno"), MALI_B, "c", workers=1)
    assert lab.want("w1", "adreno", worker=True)
    assert not lab.want("w2", "mali", worker=True)
    lab.want("person", "adreno")
    assert lab.want("anybody") == "c"
    assert lab.limits(worker=True) == ("all 1 worker slots are taken",)
    # A slot and the phone that it was freed with may go to two requests.
    assert set(lab.decide(Allocator.lease_ended, "a", "")) == {Grant("w2", "b"), Grant("person", "a")}


@pytest.fixture
def two_hosts():
    return Lab(*(phone(f"{host}{number}", host, host=host) for host in ("one", "two") for number in (1, 2)), workers=1)


def test_each_host_has_its_worker_slots(two_hosts):
    lab = two_hosts
    first, second = lab.want("w1", worker=True), lab.want("w2", worker=True)
    assert {first[:3], second[:3]} == {"one", "two"}
    assert not lab.want("w3", worker=True)
    assert lab.limits(worker=True) == ("all 1 worker slots are taken on each host",)
    assert lab.want("person", "one")
    lab.decide(Allocator.slot_kept, second, "kept")
    assert not lab.end(second)
    assert lab.end(first) == "w3"
    assert lab.decide(Allocator.slot_freed, "kept") == []
    assert lab.want("w4", "two", worker=True)
    assert not lab.want("w5", "two", worker=True)
    assert "all 1 worker slots of two are taken" in str(lab.why("w5", "two", worker=True))


def test_several_workers_are_served_at_once_on_hosts_with_a_slot_each(two_hosts):
    two_hosts.paused("not yet")
    for number in range(3):
        two_hosts.want(f"w{number}", worker=True)
    assert sorted(device[:3] for device in two_hosts.paused().values()) == ["one", "two"]


def test_a_hub_of_another_host_is_another_hub():
    lab = Lab(*(phone(name, host=f"host of {name}", place=parse_place("1-4.2")) for name in "ab"))
    assert lab.want("quiet", device="a", quiet_hub=True)
    assert lab.want("beside", device="b")


def test_nobody_holds_more_than_their_quota():
    lab = Lab("a", "b", "c")
    lab.quotas(UserConfig(), alice=UserConfig(devices=1))
    device = lab.want("r1")
    assert not lab.want("r2")
    assert lab.want("s", user="bob")
    assert lab.limits() == ("alice holds 1 device of at most 1",)  # said once, not for each phone
    assert "of at most" not in str(lab.why("r2"))
    lab.end(device)
    assert "r2" in lab.holders().values()
    lab.want("r3")
    assert [grant.request_id for grant in lab.quotas(UserConfig(devices=2))] == ["r3"]


def test_nothing_is_granted_while_paused_and_as_much_as_possible_afterwards():
    lab = Lab(ADRENO_A, MALI_B)
    lab.paused("the disk is full")
    # Served in this order, "any" might take the only phone that suits "adreno".
    for name, text in (("any", "android"), ("adreno", "adreno"), ("too many", "android")):
        assert not lab.want(name, text)
    assert lab.limits() == ("nothing is handed out: the disk is full",)
    assert not lab.changed(ADRENO_A)
    assert lab.paused() == {"any": "b", "adreno": "a"}


def test_a_restored_lease_counts_before_its_phone_is_known():
    lab = Lab("b", workers=1)
    lab.quotas(UserConfig(devices=2))
    lab.decide(Allocator.lease_restored, "a", "old", lease_request(worker=True))
    with pytest.raises(ValueError, match="held"):
        lab.decide(Allocator.lease_restored, "a", "older", lease_request())
    assert not lab.changed("a")
    assert not lab.want("worker", user="bob", worker=True)
    assert lab.want("person") == "b"
    assert not lab.want("third")
    for name in ("person", "third"):  # one that holds, one that waits
        with pytest.raises(ValueError, match="twice"):
            lab.want(name)
    assert lab.end("a") == "worker"
    assert lab.holders() == {"b": "person", "a": "worker"}


# --- memory -----------------------------------------------------------------------------------------------------------


def test_unknown_keys_leave_nothing_behind():
    lab = Lab(phone("p", life=Life.GONE))
    for number in range(1000):
        lab.want(f"r{number}", f"unknown-{number}", number, user=f"{number}")
        lab.decide(Allocator.request_withdrawn, f"r{number}")
    state = lab.allocator._state
    queues = state.queues
    left = (state.index._groups, queues._waiting, queues._tiers, queues._by_served_order, state.ledger._accounts)
    assert not any(left)


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
    lab = Lab(ADRENO_A, MALI_B)
    lab.want("r1", "adreno", user="carol", longest_s=90.0)
    lab.want("urgent", "adreno", 7, user="dave")
    lab.want("older", "adreno")
    lab.want("r3", "adreno")
    lab.now_s += 30
    held, mismatch = lab.allocator.explain(lease_request("adreno"), lab.now_s, "r3")
    assert (held.device, held.matches, held.reason) == ("a", True, "held by carol for 30 s")
    assert held.evidence == "60 s more at most\nbehind 1 of higher priority, 1 of the same user, older"
    assert (mismatch.device, mismatch.matches) == ("b", False)
    assert "adreno" in mismatch.reason
    assert [each.reason for each in lab.allocator.explain(lease_request("mali"), lab.now_s) if each.matches] == ["free"]


def test_explaining_phones_that_nobody_holds_looks_at_nobody_who_waits(monkeypatch):
    """A team's 100,000 jobs may wait."""
    lab, looked, ahead_of = Lab(ADRENO_A, MALI_B), [], allocator_explain._ahead_of
    for number in range(3):
        lab.want(f"r{number}", "adreno")
    monkeypatch.setattr(allocator_explain, "_ahead_of", lambda *given: looked.append(given) or ahead_of(*given))
    assert lab.why("", "mali")["b"] == "free"
    assert looked == []
    assert lab.why("", "adreno")["a"].endswith("; behind 2 of the same user, older")
    assert len(looked) == 1


BENCH = {"user": "bob", "lease_class": LeaseClass.BENCH}


def tuning(lab, longest_s=86400.0, **more):
    return lab.want("tune", user="tuner", lease_class=LeaseClass.TUNE, longest_s=longest_s, **more)


def test_of_a_tuning_that_yields_it_is_said_when_it_is_asked_and_the_estimate_counts_on_it():
    lab = Lab("a", min_slice_s=60.0, starved_s=1800.0)
    tuning(lab)
    lab.now_s += 20
    lab.want("bench", **BENCH)
    held = "held by tuner's tuning for"
    assert lab.why("bench", **BENCH) == {"a": f"{held} 20 s; asked to give it back in 40 s at the latest"}
    assert lab.estimate_s("bench") == 40.0 + YIELDED_S
    lab.later(40)
    assert lab.asked() == ["a"]
    asked = "asked to give it back: before its next candidate, or at its end"
    assert lab.why("bench", **BENCH) == {"a": f"{held} 60 s; {asked}"}
    assert lab.estimate_s("bench") == YIELDED_S


def test_a_tuning_that_goes_first_is_asked_when_the_other_has_starved():
    lab = Lab("a", min_slice_s=60.0, starved_s=1800.0)
    tuning(lab, priority=7)
    lab.want("bench", user="bob")
    assert "asked to give it back in 31 min at the latest" in lab.why("bench", user="bob")["a"]
    assert lab.estimate_s("bench") == 1860.0 + YIELDED_S
    lab.later(1860.0)
    assert lab.asked()


def test_a_tuning_that_ends_sooner_than_it_is_asked_is_waited_for():
    lab = Lab("a", min_slice_s=60.0)
    tuning(lab, 30.0)
    lab.want("bench", user="bob")
    assert lab.why("bench", user="bob")["a"] == "held by tuner's tuning for 0 s; 30 s more at most"
    assert lab.estimate_s("bench") == 30.0
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
    reason = lab.why("mine", user="carol", avoid=frozenset({"x"}))["a"]
    assert "1 that waited too long" in reason
    assert "1 of users who have had less (bob)" in reason


def test_an_estimate_follows_the_holders_and_those_ahead():
    lab = Lab("a", "b")
    lengths = (("r1", 100.0), ("r2", 60.0), ("first", 30.0), ("second", None), ("third", None), ("fourth", None))
    for name, longest_s in lengths:
        lab.want(name, longest_s=longest_s)
    lab.now_s += 10
    # b is free after 50 s, then after 80 s; "second" holds it for an unknown time, a is free after 90 s.
    estimates = [lab.estimate_s(name) for name in ("first", "second", "third", "fourth", "nobody")]
    assert estimates == [50.0, 80.0, 90.0, None, None]
    device = next(device for device, name in lab.holders().items() if name == "r2")
    lab.decide(Allocator.lease_extended, device, 200.0)
    assert lab.estimate_s("first") == 90.0


def test_no_estimate_where_nobody_can_say():
    lab = Lab("a")
    lab.want("r1")
    lab.want("waits")
    assert lab.estimate_s("waits") is None
    lab.decide(Allocator.lease_extended, "a", 5.0)
    assert lab.estimate_s("waits") == 5.0
    lab.paused("full")
    assert lab.estimate_s("waits") is None


def test_a_place_that_is_kept_outlasts_its_lease():
    lab = Lab("a", "b", workers=1)
    device = lab.want("tune", worker=True, longest_s=100.0)
    lab.decide(Allocator.slot_kept, device, "slot")
    lab.end(device)
    assert lab.want("bench", worker=True) == ""
    assert lab.limits(worker=True) == ("all 1 worker slots are taken",)
    assert lab.estimate_s("bench") == 100.0
    shell = lab.want("shell")
    lab.decide(Allocator.slot_kept, shell, "none")  # a lease without a place keeps none
    lab.end(shell)
    assert lab.decide(Allocator.slot_freed, "none") == []
    (grant,) = lab.decide(Allocator.slot_freed, "slot")
    assert grant.request_id == "bench"
    assert lab.decide(Allocator.slot_freed, "slot") == []
    assert lab.want("other", worker=True) == ""


def test_a_host_whose_workers_stand_serves_who_needs_none():
    lab = Lab(phone("a", host="lab1"), phone("b", host="lab1"), phone("c", host="lab2"), workers=2)
    lab.decide(Allocator.workers_stopped, "lab1", 0, "no job runs on lab1: its disk is full")
    assert lab.want("elsewhere", worker=True) == "c"
    assert lab.want("waits", worker=True) == ""
    assert lab.why("waits", worker=True)["a"] == "no job runs on lab1: its disk is full"
    assert lab.want("shell") == "a"
    assert lab.allocator.overlooked(9) == 0
    assert lab.decide(Allocator.workers_stopped, "lab1", 1, "no job runs on lab1: its disk is full")
    assert lab.want("second", worker=True) == ""
    lab.end("a")
    assert lab.allocator.overlooked(9) == 0
    assert [each.request_id for each in lab.decide(Allocator.workers_stopped, "lab1", 0, "")] == ["second"]


def test_no_tuning_makes_way_for_a_worker_that_may_not_run():
    lab = Lab("a", "b", workers=1, min_slice_s=10.0)
    lab.want("tuning", device="a", worker=True, lease_class=LeaseClass.TUNE)
    lab.decide(Allocator.slot_kept, "a", "slot")
    lab.decide(Allocator.workers_stopped, "", 0, "no job runs: its disk is full")
    lab.want("bench", priority=5, user="bob", device="b", worker=True)
    lab.later(60.0)
    assert (lab.slots, lab.limits(worker=True)) == ([], ("no job runs: its disk is full",))
