"""Who gets which phone: rules by example, every order of the inputs, and invariants after every random step."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from farm.core.allocator import REMEMBERED_REQUESTS, Allocator
from farm.core.allocator_events import (
    DeviceChanged,
    DeviceForgotten,
    Grant,
    LeaseEnded,
    RequestCame,
    RequestWithdrawn,
)
from farm.core.device import DeviceView, Heat, Life, Service
from farm.core.requests import Door, LeaseRequest
from farm.core.selector import Selector


def phone(name, *aliases, life=Life.READY, **facts):
    labels = {"name": name, **({"gpu": aliases[0]} if aliases else {})}
    return DeviceView(
        name, f"serial-{name}", life, adopted=True, aliases=("android", *aliases, name), labels=labels, **facts
    )


def wish(text="android", priority=1, device=""):
    return LeaseRequest(Selector.parse(text), "alice", Door.JOB, priority, device=device)


def feed(allocator, *events):
    return [grant for event in events for grant in allocator.apply(event, 0.0).grants]


def test_a_free_phone_is_granted_at_once():
    assert feed(Allocator(), DeviceChanged(phone("a")), RequestCame("r", wish())) == [Grant("r", "a")]


def test_a_waiting_request_gets_the_phone_that_becomes_free():
    allocator = Allocator()
    assert not feed(allocator, RequestCame("r", wish()), DeviceChanged(phone("a", life=Life.CHECKING)))
    assert feed(allocator, DeviceChanged(phone("a"))) == [Grant("r", "a")]


def test_higher_priority_first_then_first_come():
    allocator = Allocator()
    feed(allocator, *(RequestCame(name, wish(priority=priority)) for name, priority in (("a", 1), ("b", 5), ("c", 5))))
    served = [feed(allocator, DeviceChanged(phone("p")))[0].request_id]
    while grants := feed(allocator, LeaseEnded("p")):
        served.append(grants[0].request_id)
    assert served == ["b", "c", "a"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_the_order_of_arrival_never_changes_who_can_be_served(order):
    """Three wishes and one phone in any order: the most urgent that came before the phone, else the next that came."""
    events = [
        RequestCame("low", wish("android", 1)),
        RequestCame("high", wish("adreno", 9)),
        RequestCame("never", wish("mali", 99)),
        DeviceChanged(phone("p", "adreno")),
    ]
    allocator = Allocator()
    grants = feed(allocator, *(events[index] for index in order))
    before = [events[index].id for index in order[: order.index(3)] if index != 3]
    after = [events[index].id for index in order[order.index(3) + 1 :]]
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
    assert not feed(allocator, DeviceChanged(replace(phone("p"), **change)), RequestCame("r", wish()))
    (reason,) = allocator.explain(wish(), 0.0, "r")
    assert reason.matches
    assert reason.reason not in ("", "free")


def test_withdrawing_is_final_and_harmless_when_repeated():
    allocator = Allocator()
    feed(allocator, RequestCame("r", wish()), RequestWithdrawn("r"), RequestWithdrawn("r"))
    assert not feed(allocator, DeviceChanged(phone("p")))
    assert not allocator.waiting()


def test_the_common_phone_is_taken_while_nothing_is_known():
    allocator = Allocator()
    feed(allocator, *(DeviceChanged(phone(*each)) for each in (("m", "mali"), ("x", "adreno"), ("y", "adreno"))))
    assert feed(allocator, RequestCame("r", wish())) == [Grant("r", "x")]


def test_a_phone_that_others_need_is_kept_for_them():
    allocator = Allocator()
    feed(allocator, *(DeviceChanged(phone(*each)) for each in (("a", "adreno"), ("b", "adreno"), ("z", "mali"))))
    # Somebody tunes for the adreno phones: request, release, again and again.
    for number in range(6):
        (grant,) = feed(allocator, RequestCame(f"tune-{number}", wish("adreno")))
        feed(allocator, LeaseEnded(grant.device))
    assert feed(allocator, RequestCame("any", wish())) == [Grant("any", "z")]


def test_one_named_device_only():
    allocator = Allocator()
    feed(allocator, DeviceChanged(phone("a")), RequestCame("r", wish(device="b")))
    assert feed(allocator, DeviceChanged(phone("b"))) == [Grant("r", "b")]


def test_a_phone_that_changes_its_labels_answers_to_the_new_ones_only():
    allocator = Allocator()
    feed(allocator, DeviceChanged(phone("p", "adreno", life=Life.CHECKING)))
    feed(allocator, RequestCame("old", wish("adreno")), RequestCame("new", wish("mali")))
    assert feed(allocator, DeviceChanged(phone("p", "mali"))) == [Grant("new", "p")]
    assert allocator.matching(Selector.parse("adreno")) == frozenset()


def test_a_forgotten_phone_is_gone():
    allocator = Allocator()
    feed(allocator, DeviceChanged(phone("p")), DeviceForgotten("p"), DeviceForgotten("p"))
    assert not feed(allocator, RequestCame("r", wish()))
    assert not allocator.answers_to("android")


def test_explain_names_holder_queue_and_mismatch():
    allocator = Allocator()
    feed(allocator, DeviceChanged(phone("a", "adreno")), DeviceChanged(phone("b", "mali")))
    feed(
        allocator,
        RequestCame("r1", wish("adreno")),
        RequestCame("r2", wish("adreno", 7)),
        RequestCame("r3", wish("adreno")),
    )
    held, mismatch = allocator.explain(wish("adreno"), 0.0, "r3")
    assert (held.device, held.matches, held.reason) == ("a", True, "held; 1 waiting requests come first")
    assert (mismatch.device, mismatch.matches) == ("b", False)
    assert "adreno" in mismatch.reason
    assert [each.reason for each in allocator.explain(wish("mali"), 0.0) if each.matches] == ["free"]


def test_unknown_keys_leave_nothing_behind():
    allocator = Allocator()
    feed(allocator, DeviceChanged(phone("p", life=Life.GONE)))
    for number in range(1000):
        feed(allocator, RequestCame(f"r{number}", wish(f"unknown-{number}")), RequestWithdrawn(f"r{number}"))
    assert not allocator._groups
    assert not allocator._waiting


def test_history_is_bounded():
    allocator = Allocator()
    feed(allocator, DeviceChanged(phone("p")))
    for number in range(3 * REMEMBERED_REQUESTS):
        feed(allocator, RequestCame(f"r{number}", wish(f"name=p,gpu-{number % 2}=1" if number % 3 else "p")))
        feed(allocator, RequestWithdrawn(f"r{number}"), LeaseEnded("p"))
    assert sum(group.recent for group in allocator._groups.values()) == len(allocator._recent) <= REMEMBERED_REQUESTS


def test_an_id_may_come_once():
    allocator = Allocator()
    feed(allocator, RequestCame("r", wish()))
    with pytest.raises(ValueError, match="twice"):
        allocator.apply(RequestCame("r", wish()), 0.0)


NAMES = ("a", "b", "c")
ALIASES = ("adreno", "mali")
KEYS = ("android", *ALIASES, *NAMES, "name=a", "gpu=mali,android", "unknown")


class AllocatorMachine(RuleBasedStateMachine):
    """Random histories against the plainest possible model."""

    @initialize()
    def begin(self):
        self.allocator = Allocator()
        self.views = {}
        self.waiting = {}  # id -> (order, request)
        self.held = {}  # device -> id
        self.count = 0

    def step(self, event):
        grants = self.allocator.apply(event, 0.0).grants
        for grant in grants:
            view = self.views[grant.device]
            order, request = self.waiting.pop(grant.request_id)
            assert view.leasable
            assert grant.device not in self.held
            assert request.device in ("", view.name)
            assert request.selector.matches(view.labels, view.aliases)
            # Nobody more deserving could have used it.
            for other_order, other in self.waiting.values():
                if other.selector.matches(view.labels, view.aliases) and other.device in ("", view.name):
                    assert order < other_order
            self.held[grant.device] = grant.request_id

    @rule(
        name=st.sampled_from(NAMES),
        alias=st.sampled_from(ALIASES),
        life=st.sampled_from([Life.READY] * 3 + [Life.GONE, Life.CHECKING]),
        service=st.sampled_from([Service.IN] * 3 + [Service.DRAINING]),
        heat=st.sampled_from([Heat.OK] * 3 + [Heat.COOLING]),
    )
    def device_changes(self, name, alias, life, service, heat):
        self.views[name] = phone(name, alias, life=life, service=service, heat=heat)
        self.step(DeviceChanged(self.views[name]))

    @rule(name=st.sampled_from(NAMES))
    def device_is_forgotten(self, name):
        self.views.pop(name, None)
        self.step(DeviceForgotten(name))

    @rule(key=st.sampled_from(KEYS), priority=st.integers(-1, 2), device=st.sampled_from(("", "", "", "b")))
    def request_comes(self, key, priority, device):
        self.count += 1
        request = wish(key, priority, device)
        self.waiting[f"r{self.count}"] = ((-priority, self.count), request)
        self.step(RequestCame(f"r{self.count}", request))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def request_is_withdrawn(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[request_id]
        self.step(RequestWithdrawn(request_id))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def lease_ends(self, data):
        device = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[device]
        self.step(LeaseEnded(device))

    @invariant()
    def nothing_that_could_be_granted_waits(self):
        for name, view in self.views.items():
            if view.leasable and name not in self.held:
                for _, request in self.waiting.values():
                    assert not (request.device in ("", name) and request.selector.matches(view.labels, view.aliases))

    @invariant()
    def the_index_says_what_the_devices_say(self):
        allocator = self.allocator
        assert {name: each.request_id for name, each in allocator.held.items()} == self.held
        assert [name for name, _ in allocator.waiting()] == sorted(self.waiting, key=lambda name: self.waiting[name][0])
        for key in KEYS:
            selector = Selector.parse(key)
            expected = {name for name, view in self.views.items() if selector.matches(view.labels, view.aliases)}
            assert allocator.matching(selector) == expected
        for key, group in allocator._groups.items():
            assert group.queue or group.recent
            assert group.queue == sorted(group.queue)
            assert all(key in allocator._groups_of[name] for name in group.devices)
        for name, keys in allocator._groups_of.items():
            assert all(name in allocator._groups[key].devices for key in keys)

    @invariant()
    def everything_is_explained(self):
        for request_id, (_, request) in self.waiting.items():
            for reason in self.allocator.explain(request, 0.0, request_id):
                assert reason.reason
                assert reason.reason != "free" or not reason.matches


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
