"""Windows in which devices belong to some users only."""

import pytest

from farm.common.selector import Selector
from farm.head.allocator.allocator import Allocator
from farm.head.allocator.model import Grant
from farm.head.allocator.reservations import Reservation
from farm.model.requests import LeaseClass
from tests.support.allocator import Lab, lease_request, phone

BEGIN_S = 1000.0  # when every Lab begins


def window(starts_s, ends_s, *users, on="android", name="w"):
    return Reservation(name, Selector.parse(on), frozenset(users), BEGIN_S + starts_s, BEGIN_S + ends_s)


def reserve(lab, *windows):
    return lab.decide(Allocator.reservations_changed, windows)


@pytest.fixture
def lab():
    return Lab("a")


def test_inside_the_window_only_its_users_get_the_devices():
    lab = Lab(phone("a", "adreno"), phone("b", "mali"))
    reserve(lab, window(0, 100, "ann", "bob", on="adreno"))
    assert not lab.want("cleo", "adreno", user="cleo", longest_s=1.0)
    assert lab.want("other", user="cleo") == "b"
    assert lab.want("bob", user="bob") == "a"
    assert "reserved for ann, bob for another 100 s" in lab.why("cleo", "adreno", user="cleo")["a"]
    assert lab.end("a") == ""
    assert lab.want("ann", user="ann", device="a") == "a"


@pytest.mark.parametrize(("longest_s", "granted"), [(99.0, True), (100.0, True), (101.0, False), (None, True)])
def test_before_it_a_lease_is_granted_that_ends_in_time(longest_s, granted):
    for user, gets in (("bob", granted), ("ann", True)):
        lab = Lab("a", reservation_guard_s=100.0)
        reserve(lab, window(100, 200, "ann"))
        assert bool(lab.want("r", user=user, longest_s=longest_s)) is gets


def test_one_of_unknown_length_is_granted_only_well_before():
    lab = Lab("a", reservation_guard_s=60.0)
    reserve(lab, window(100, 200, "ann"))
    lab.now_s += 41
    assert not lab.want("bob", user="bob")
    assert "reserved for ann in 59 s, and how long it takes is unknown" in lab.why("bob", user="bob")["a"]
    assert lab.want("short", user="bob", longest_s=30.0) == "a"


def test_a_shorter_request_of_the_same_line_may_go_first(lab):
    reserve(lab, window(100, 200, "ann"))
    for name, longest_s in (("holder", 10.0), ("long", 150.0), ("short", 50.0)):
        lab.want(name, user="bob", longest_s=longest_s)
    assert lab.end("a") == "short"


def test_it_starts_and_ends_by_itself(lab):
    reserve(lab, window(10, 20, "ann"))
    lab.want("bob", user="bob", longest_s=60.0)
    lab.want("ann", user="ann", longest_s=5.0)  # hers from the first moment, and over before the window
    assert lab.end("a") == ""
    for at_s, granted in ((10, []), (20, [Grant("bob", "a")])):
        assert lab.allocator.next_check_s() == BEGIN_S + at_s
        lab.now_s = BEGIN_S + at_s
        assert lab.decide(Allocator.clock_advanced) == granted
    assert lab.allocator.next_check_s() is None


def test_its_end_is_noticed_with_any_event():
    lab = Lab("a", "b")
    reserve(lab, window(0, 20, "ann", on="a"))
    for name in ("first", "second"):
        lab.want(name, user="bob")
    lab.now_s += 21
    assert lab.decide(Allocator.request_withdrawn, "unknown") == [Grant("second", "a")]


def test_reservations_that_are_taken_back_serve_those_who_wait(lab):
    reserve(lab, window(0, 100, "ann"))
    lab.want("bob", user="bob")
    assert lab.estimate_s("bob") == 100.0
    assert reserve(lab) == [Grant("bob", "a")]


def test_users_of_overlapping_windows_share_and_run_into_none_of_others():
    lab = Lab("a", "b")
    reserve(lab, window(0, 100, "ann", name="1"), window(50, 150, "bob", name="2"))
    assert not lab.want("bob-early", user="bob", longest_s=70.0)
    assert lab.want("ann-short", user="ann", longest_s=50.0)
    assert lab.want("ann-long", user="ann", longest_s=90.0)
    assert not lab.want("ann-longest", user="ann", longest_s=101.0)
    lab.now_s += 50
    lab.decide(Allocator.clock_advanced)
    assert lab.end("a") == "bob-early"


def test_a_device_that_comes_under_a_window_by_its_labels_is_kept():
    lab = Lab(phone("a", "mali"))
    reserve(lab, window(0, 100, "ann", on="adreno"))
    lab.changed(phone("a", "adreno"))
    assert not lab.want("bob", user="bob")
    assert lab.changed(phone("a", "mali")) == {"bob": "a"}


def test_tune_leases_in_the_way_are_asked_once_when_it_starts():
    lab = Lab("a", "b", "c", min_slice_s=500.0)
    lab.want("tune", user="bob", device="a", lease_class=LeaseClass.TUNE)
    lab.want("bench", user="bob", device="b", lease_class=LeaseClass.BENCH)
    lab.want("hers", user="ann", device="c", lease_class=LeaseClass.TUNE)
    reserve(lab, window(1000, 2000, "ann"))
    assert not lab.yields
    lab.now_s = lab.allocator.next_check_s()
    lab.decide(Allocator.clock_advanced)
    lab.decide(Allocator.clock_advanced)
    assert [(ask.name, ask.request_id, ask.reason) for ask in lab.yields] == [("a", "tune", "it is reserved for ann")]
    assert lab.allocator.held["a"].asked


def test_a_restored_tune_lease_inside_a_window_is_asked(lab):
    reserve(lab, window(0, 100, "ann"))
    lab.decide(Allocator.lease_restored, "a", "old", lease_request(user="bob", lease_class=LeaseClass.TUNE))
    assert lab.asked() == ["a"]


def test_a_window_that_is_over_or_concerns_nothing_costs_no_look(lab):
    reserve(lab, window(-100, -1, "ann"), window(10, 20, "ann", on="nothing"))
    assert lab.allocator.next_check_s() is None
    assert lab.want("bob", user="bob") == "a"
