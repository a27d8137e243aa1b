"""Devices that are closed to some classes: who is served, who is asked to yield, what is said and estimated."""

from dataclasses import replace

import pytest

from farm.head.allocator.allocator import Allocator
from farm.model.device import Closed, Heat, UsbPlace
from farm.model.requests import LeaseClass
from tests.support.allocator import Lab, phone

BENCH, TUNE, INTERACTIVE = LeaseClass.BENCH, LeaseClass.TUNE, LeaseClass.INTERACTIVE
WARM = "skin 41.2 °C is above 38 °C for bench"


def warm(name, *classes, opens_in_s=None, **facts):
    return phone(name, closed={each: Closed(WARM, opens_in_s) for each in classes}, **facts)


def test_a_class_waits_for_a_device_that_is_open_to_it_and_others_do_not():
    lab = Lab(warm("a", BENCH))
    assert lab.want("bench", priority=9, lease_class=BENCH) == ""
    for other in (TUNE, INTERACTIVE):  # each class has a queue of its own, whatever its priority
        assert lab.want(f"{other}", priority=0, lease_class=other) == "a"
        lab.end("a")
    assert lab.holders() == {}  # free, and closed to who waits
    assert lab.changed("a") == {"bench": "a"}


def test_of_two_devices_the_open_one_is_given():
    lab = Lab(warm("a", BENCH), "b")
    assert lab.want("bench", lease_class=BENCH) == "b"
    assert lab.want("other") == "a"


def test_when_several_come_free_as_many_as_possible_are_served_across_classes():
    """The bench can have b only: the foremost request, which could have either, leaves it."""
    lab = Lab()
    lab.want("first")
    lab.want("bench", lease_class=BENCH)
    lab.want("more", user="bob")
    assert lab.changed(warm("a", BENCH)) == {"first": "a"}
    assert lab.changed("b").keys() <= {"bench", "more"}
    assert "b" in lab.holders()


def test_a_starved_line_is_served_first_once_the_device_is_open_to_it():
    lab = Lab(warm("a", BENCH), starved_s=100.0)
    lab.want("held", priority=5)
    lab.want("bench", lease_class=BENCH, priority=0)
    lab.want("next", priority=5)
    lab.now_s += 200.0
    lab.changed("a")
    assert lab.end("a") == "bench"


def test_a_tune_lease_is_asked_to_yield_when_its_device_closes_to_tuning():
    lab = Lab("a", min_slice_s=60.0)
    lab.want("tune", lease_class=TUNE)
    lab.changed(warm("a", BENCH))
    assert lab.asked() == []
    lab.changed(warm("a", BENCH, TUNE, opens_in_s=60.0))
    assert [(ask.name, ask.request_id, ask.reason) for ask in lab.yields] == [("a", "tune", f"{WARM}, about 60 s")]
    lab.changed(warm("a", BENCH, TUNE, opens_in_s=50.0))
    assert lab.asked() == ["a"]  # once


@pytest.mark.parametrize("lease_class", [BENCH, INTERACTIVE])
def test_others_keep_their_device_when_it_closes(lease_class):
    lab = Lab("a")
    lab.want("r", lease_class=lease_class)
    lab.changed(warm("a", *LeaseClass, heat=Heat.COOLING))
    assert lab.asked() == []
    assert lab.holders() == {"a": "r"}


def test_nobody_is_asked_to_yield_for_a_request_that_could_not_have_the_device():
    lab = Lab(warm("a", BENCH), min_slice_s=10.0)
    lab.want("tune", lease_class=TUNE)
    lab.now_s += 20.0
    lab.want("bench", lease_class=BENCH, user="bob", priority=5)
    lab.now_s += 20.0
    lab.decide(Allocator.clock_advanced)
    assert lab.asked() == []


def test_the_reason_names_figure_limit_and_estimate():
    lab = Lab(warm("a", BENCH, opens_in_s=170.0))
    lab.want("bench", lease_class=BENCH)
    assert lab.why("bench", lease_class=BENCH) == {"a": f"{WARM}, about 3 min"}
    assert lab.why("") == {"a": "free"}
    lab.want("other", longest_s=60.0)
    assert lab.why("bench", lease_class=BENCH)["a"].endswith(f"60 s more at most; {WARM}, about 3 min")
    cools = Lab(warm("a", *LeaseClass, heat=Heat.COOLING, opens_in_s=20.0))
    assert cools.why("") == {"a": f"{WARM}, about 20 s"}


def test_estimates_count_the_time_until_the_device_opens():
    lab = Lab(warm("a", BENCH, opens_in_s=100.0))
    lab.want("bench", lease_class=BENCH)
    estimate_s = lab.allocator.estimate_s
    assert estimate_s("bench", lab.now_s) == 100.0
    assert estimate_s("bench", lab.now_s + 40.0) == 60.0
    assert estimate_s("bench", lab.now_s + 500.0) == 0.0
    lab.want("other", longest_s=300.0)
    assert estimate_s("bench", lab.now_s) == 400.0  # it cools when it is given back


def test_an_estimate_is_unknown_when_nobody_knows_when_the_device_opens():
    lab = Lab(warm("a", BENCH))
    lab.want("bench", lease_class=BENCH)
    assert lab.estimate_s("bench") is None
    cooling = warm("b", *LeaseClass, heat=Heat.COOLING, opens_in_s=30.0)
    lab.changed(cooling)
    assert lab.estimate_s("bench") == 30.0  # the other one
    lab.changed(replace(cooling, adopted=False))
    assert lab.estimate_s("bench") is None


# --- a quiet hub ------------------------------------------------------------------------------------------------------


def on_hub(name, hub="1-4", **facts):
    return phone(name, place=UsbPlace(hub, 1, f"{hub}.1"), **facts)


@pytest.fixture
def hub():
    """Three phones, of which two are on one hub."""
    return Lab(on_hub("a"), on_hub("b"), on_hub("far", "2"))


def test_a_request_for_a_quiet_hub_waits_until_its_neighbours_are_given_back(hub):
    hub.want("other", device="b", longest_s=114.0)
    hub.want("elsewhere", device="far")
    assert hub.want("quiet", device="a", quiet_hub=True) == ""
    assert hub.why("quiet", device="a", quiet_hub=True)["a"] == "b on the same hub is in use"
    assert hub.estimate_s("quiet") == 114.0
    hub.changed(on_hub("c"))
    assert hub.want("more", device="c") == "c"  # who only waits keeps nobody from the neighbours
    hub.end("c")
    hub.end("far")
    assert "a" not in hub.holders()
    hub.end("b")
    assert hub.holders() == {"a": "quiet"}


def test_requests_for_a_quiet_hub_that_could_be_served_at_once_are_served_one_after_the_other():
    lab = Lab()
    for name in ("q1", "q2"):
        lab.want(name, quiet_hub=True)
    lab.paused("full")
    for name in ("a", "b"):
        lab.changed(on_hub(name))
    ((request, device),) = lab.paused().items()
    assert request == "q1"
    lab.end(device)
    assert list(lab.holders().values()) == ["q2"]


def test_while_the_request_has_its_phone_the_neighbours_are_its_users_alone(hub):
    hub.want("quiet", device="a", quiet_hub=True, longest_s=300.0)
    assert hub.want("other", device="b", user="bob") == ""
    assert hub.why("other", device="b", user="bob")["b"] == "its hub is kept quiet for alice, who has a"
    assert hub.estimate_s("other") == 300.0
    assert hub.want("elsewhere", user="bob") == "far"
    assert hub.want("own", device="b") == "b"
    hub.end("b")
    assert hub.holders() == {"a": "quiet", "far": "elsewhere"}
    hub.end("a")
    assert hub.holders() == {"b": "other", "far": "elsewhere"}


def test_a_neighbour_that_is_plugged_in_elsewhere_is_given_to_others(hub):
    hub.want("quiet", device="a", quiet_hub=True)
    hub.want("other", device="b", user="bob")
    assert hub.changed(on_hub("b", "2")) == {"other": "b"}


@pytest.mark.parametrize("gone", [(Allocator.device_changed, on_hub("b", "2")), (Allocator.device_forgotten, "b")])
def test_a_neighbour_that_is_moved_or_forgotten_disturbs_no_more(hub, gone):
    hub.want("other", device="b")
    hub.want("quiet", device="a", quiet_hub=True)
    assert [grant.request_id for grant in hub.decide_each(gone)] == ["quiet"]


def test_without_a_known_place_every_hub_is_quiet():
    lab = Lab("a", "b")
    lab.want("other", device="b")
    assert lab.want("quiet", quiet_hub=True) == "a"
