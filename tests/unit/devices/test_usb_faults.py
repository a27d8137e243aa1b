"""Losses as adb's list tells them: what is told once, to whom it is explained, when it is over."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from farm.common.events import EventLog
from farm.devices.lifecycle.recovery import RecoveryAction
from farm.devices.lifecycle.state import LifecycleState
from farm.devices.power.power_rules import WINDOW_S, UsbLosses
from farm.devices.power.usb import UsbFaults
from farm.model.device import parse_place
from farm.model.health import DeviceFault

PLACES = {"a": "1-4.1", "b": "1-4.2", "c": "2-1", "net:5555": ""}


class Lab:
    """Agents on hubs, and everything told about them."""

    def __init__(self):
        self.now_s = 100.0
        self.told = []
        events = EventLog()
        events.subscribe(lambda event: self.told.append((event.kind, event.subject, dict(event.data))))
        self.faults = UsbFaults(events, monotonic=lambda: self.now_s)
        self.agents = {
            serial: SimpleNamespace(
                serial=serial,
                name=f"phone-{serial}",
                place=parse_place(path),
                external_cause="",
                untethered=False,
                state=LifecycleState(),
            )
            for serial, path in PLACES.items()
        }
        self.listed("a", "b", "c", "net:5555")

    def listed(self, *serials, dead=(), server_lost=False):
        changed = self.faults.update(self.agents, (*serials, *dead), dead, server_lost=server_lost)
        return {agent.serial for agent in changed}

    @property
    def kinds(self):
        return [(kind, subject) for kind, subject, _ in self.told]


@pytest.fixture
def lab():
    return Lab()


def test_one_phone_is_no_news_here(lab):
    assert lab.listed("b", "c", "net:5555") == set()
    assert lab.kinds == []
    assert lab.faults.problems() == []


def test_a_hub_is_told_once_and_its_phones_know(lab):
    lab.listed("b", "c", "net:5555")
    lab.now_s += 1.0
    assert lab.listed("c", "net:5555") == {"a", "b"}
    assert lab.listed("c", "net:5555") == set()
    (event,) = lab.told
    assert event[:2] == ("hub.lost", "1-4")
    assert event[2] == {"devices": ("phone-a", "phone-b"), "reason": "its hub 1-4 vanished with 2 phones"}
    assert lab.agents["a"].external_cause == lab.agents["b"].external_cause == "its hub 1-4 vanished with 2 phones"
    assert lab.agents["c"].external_cause == ""
    assert lab.faults.problems() == [
        "hub 1-4 vanished with 2 phones: phone-a, phone-b (look at its cable and its power)"
    ]


def test_a_hub_whose_phones_stay_listed_as_dead_is_blamed_too(lab):
    assert lab.listed("b", "c", "net:5555", dead=("a",)) == set()
    assert lab.listed("c", "net:5555", dead=("a", "b")) == {"a", "b"}
    assert lab.agents["a"].external_cause == "its hub 1-4 went silent with 2 phones"
    assert lab.listed("c", "net:5555", dead=("b",)) == set()  # one leaves adb's list meanwhile
    assert lab.listed("b", "c", "net:5555") == {"a", "b"}
    assert lab.kinds == [("hub.lost", "1-4"), ("hub.back", "1-4")]


def test_phones_that_come_back_dead_for_a_moment_are_no_news(lab):
    lab.listed("c", "net:5555")
    lab.listed("c", "net:5555", dead=("a", "b"))
    lab.listed("a", "b", "c", "net:5555")
    assert lab.kinds == [("hub.lost", "1-4"), ("hub.back", "1-4")]


def test_one_phone_back_acquits_the_hub(lab):
    lab.listed("c", "net:5555")
    assert lab.listed("a", "c", "net:5555") == {"a", "b"}
    assert lab.kinds == [("hub.lost", "1-4"), ("hub.back", "1-4")]
    assert lab.told[-1][2] == {"devices": ["phone-a"]}
    assert lab.faults.problems() == []
    assert lab.agents["b"].external_cause == ""


def test_losses_far_apart_are_two_losses(lab):
    lab.listed("b", "c", "net:5555")
    lab.now_s += WINDOW_S + 1.0
    lab.listed("c", "net:5555")
    assert lab.kinds == []


def test_everything_at_once_is_the_host_and_no_hub_beside_it(lab):
    lab.listed("c", "net:5555")
    lab.now_s += 1.0
    assert lab.listed("net:5555") == {"a", "b", "c"}
    assert lab.kinds == [("hub.lost", "1-4"), ("host.usb_lost", "usb")]
    assert len(lab.faults.problems()) == 1
    lab.listed("a", "b", "c", "net:5555")
    assert lab.kinds[2:] == [("host.usb_back", "usb")]


def test_while_the_adb_server_is_gone_no_hub_is_blamed(lab):
    assert lab.listed(server_lost=True) == set(PLACES)
    assert lab.agents["net:5555"].external_cause == "the adb server went away"
    assert lab.kinds == []
    assert lab.faults.problems() == []
    assert lab.listed(*PLACES) == set(PLACES)
    assert lab.agents["a"].external_cause == ""


def test_phones_that_recovery_sent_away_do_not_count(lab):
    state = lab.agents["a"].state
    progress = state.progress.begin(RecoveryAction.REBOOT, DeviceFault.STUCK, "it is stuck", 1.0)
    lab.agents["a"] = SimpleNamespace(**{**vars(lab.agents["a"]), "state": replace(state, progress=progress)})
    lab.listed("c", "net:5555")
    assert lab.kinds == []


def test_a_hub_whose_phones_are_forgotten_is_no_problem(lab):
    lab.listed("c", "net:5555")
    del lab.agents["a"], lab.agents["b"]
    lab.listed("c", "net:5555")
    assert lab.faults.problems() == []


NAMES = {serial: f"phone-{serial}" for serial in PLACES}
USB = {serial: place for serial, path in PLACES.items() if (place := parse_place(path)) is not None}


def after(*lists, **names):
    """The losses after these lists of adb, each at its time."""
    losses = UsbLosses()
    for now_s, serials in lists:
        losses, _ = losses.update(frozenset(serials.split()), names or NAMES, USB, now_s)
    return losses


def test_the_decision_takes_plain_values_and_leaves_the_losses_before_as_they_were():
    before = after((1.0, "a b c"))
    lost, over = before.update(frozenset({"c"}), NAMES, USB, 2.0)
    assert (before.faults, over) == ((), ())
    assert [(each.cause.hub, each.names, each.announced) for each in lost.faults] == [
        ("1-4", ("phone-a", "phone-b"), True)
    ]
    back, over = lost.update(frozenset({"a", "c"}), NAMES, USB, 3.0)
    assert (back.faults, over, back.lost_at) == ((), lost.faults, {"b": 2.0})


def test_a_larger_loss_replaces_its_part_which_is_not_over():
    hub = after((1.0, "a b c"), (2.0, "c"))
    host, over = hub.update(frozenset(), NAMES, USB, 3.0)
    assert over == ()
    assert [each.subject for each in host.faults] == ["usb"]


@pytest.mark.parametrize(
    ("options", "subjects", "lost"),
    [
        ({"sent_away": ("a",)}, [], ["b"]),
        ({"server_lost": True}, [False], ["a", "b"]),
        ({"dead": ("a", "b")}, [True], ["a", "b"]),
    ],
)
def test_what_the_decision_knows_beside_the_list(options, subjects, lost):
    losses, _ = after((1.0, "a b c")).update(frozenset({"c"}), NAMES, USB, 2.0, **options)
    assert [each.announced for each in losses.faults] == subjects
    assert sorted(losses.lost_at) == lost
