"""Losses as adb's list tells them: what is told once, to whom it is explained, when it is over."""

from dataclasses import replace

import pytest

from farm.common.events import EventLog
from farm.devices.lifecycle.recovery import RecoveryAction
from farm.devices.power.power_rules import WINDOW_S, UsbLosses
from farm.devices.power.usb import UsbFaults
from farm.model.device import parse_place
from farm.model.health import DeviceFault
from tests.support.fake_phone import StubAgent

PLACES = {"a": "1-4.1", "b": "1-4.2", "c": "2-1", "net": ""}
HUB = [("hub.lost", "1-4"), ("hub.back", "1-4")]


class Lab:
    """Agents on hubs, and everything told about them."""

    def __init__(self):
        self.now_s = 100.0
        self.told = []
        events = EventLog()
        events.subscribe(lambda event: self.told.append((event.kind, event.subject, dict(event.data))))
        self.faults = UsbFaults(events, monotonic=lambda: self.now_s)
        self.agents = {
            serial: StubAgent(serial, f"phone-{serial}", place=parse_place(path)) for serial, path in PLACES.items()
        }
        self.listed("a b c net")

    def listed(self, serials, dead="", server_lost=False):
        """Adb lists these; returns the serials of the agents that changed."""
        dead = tuple(dead.split())
        changed = self.faults.update(self.agents, (*serials.split(), *dead), dead, server_lost=server_lost)
        return {agent.serial for agent in changed}

    def kinds(self):
        return [(kind, subject) for kind, subject, _ in self.told]

    def causes(self):
        """What explains the state of each phone, if anything does."""
        return {agent.serial: agent.external_cause for agent in self.agents.values() if agent.external_cause}


@pytest.fixture
def lab():
    return Lab()


def test_a_hub_is_told_once_and_its_phones_know(lab):
    assert lab.listed("b c net") == set()
    assert (lab.kinds(), lab.faults.problems()) == ([], [])  # one phone is no news here
    lab.now_s += 1.0
    assert lab.listed("c net") == {"a", "b"}
    assert lab.listed("c net") == set()
    why = "its hub 1-4 vanished with 2 phones"
    assert lab.told == [("hub.lost", "1-4", {"devices": ("phone-a", "phone-b"), "reason": why})]
    assert lab.causes() == {"a": why, "b": why}
    (problem,) = lab.faults.problems()
    assert problem.startswith("hub 1-4 vanished with 2 phones: phone-a, phone-b (")


def test_a_hub_whose_phones_stay_listed_as_dead_is_blamed_too(lab):
    assert lab.listed("b c net", dead="a") == set()
    assert lab.listed("c net", dead="a b") == {"a", "b"}
    assert lab.causes()["a"] == "its hub 1-4 went silent with 2 phones"
    assert lab.listed("c net", dead="b") == set()  # one leaves adb's list meanwhile
    assert lab.listed("b c net") == {"a", "b"}
    assert lab.kinds() == HUB


def test_phones_that_come_back_dead_for_a_moment_are_no_news(lab):
    lab.listed("c net")
    lab.listed("c net", dead="a b")
    lab.listed("a b c net")
    assert lab.kinds() == HUB


def test_one_phone_back_acquits_the_hub(lab):
    lab.listed("c net")
    assert lab.listed("a c net") == {"a", "b"}
    assert lab.kinds() == HUB
    assert lab.told[-1][2] == {"devices": ["phone-a"]}
    assert (lab.faults.problems(), lab.causes()) == ([], {})


def test_losses_far_apart_are_two_losses(lab):
    lab.listed("b c net")
    lab.now_s += WINDOW_S + 1.0
    lab.listed("c net")
    assert lab.kinds() == []


def test_everything_at_once_is_the_host_and_no_hub_beside_it(lab):
    lab.listed("c net")
    lab.now_s += 1.0
    assert lab.listed("net") == {"a", "b", "c"}
    assert len(lab.faults.problems()) == 1
    lab.listed("a b c net")
    assert lab.kinds() == [("hub.lost", "1-4"), ("host.usb_lost", "usb"), ("host.usb_back", "usb")]


def test_while_the_adb_server_is_gone_no_hub_is_blamed(lab):
    assert lab.listed("", server_lost=True) == set(PLACES)
    assert lab.causes() == dict.fromkeys(PLACES, "the adb server went away")
    assert lab.listed(" ".join(PLACES)) == set(PLACES)
    assert (lab.kinds(), lab.faults.problems(), lab.causes()) == ([], [], {})


def test_phones_that_recovery_sent_away_do_not_count(lab):
    agent = lab.agents["a"]
    progress = agent.state.progress.begin(RecoveryAction.REBOOT, DeviceFault.STUCK, "it is stuck", 1.0)
    agent.state = replace(agent.state, progress=progress)
    lab.listed("c net")
    assert lab.kinds() == []


def test_a_hub_whose_phones_are_forgotten_is_no_problem(lab):
    lab.listed("c net")
    del lab.agents["a"], lab.agents["b"]
    lab.listed("c net")
    assert lab.faults.problems() == []


NAMES = {serial: f"phone-{serial}" for serial in PLACES}
USB = {serial: place for serial, path in PLACES.items() if (place := parse_place(path)) is not None}


def after(*lists):
    """The losses after these lists of adb, each at its time."""
    losses = UsbLosses()
    for now_s, serials in lists:
        losses, _ = losses.update(frozenset(serials.split()), NAMES, USB, now_s)
    return losses


def test_the_decision_takes_plain_values_and_leaves_the_losses_before_as_they_were():
    before = after((1.0, "a b c"))
    lost, over = before.update(frozenset({"c"}), NAMES, USB, 2.0)
    assert (before.faults, over) == ((), ())
    (fault,) = lost.faults
    assert (fault.cause.hub, fault.names, fault.announced) == ("1-4", ("phone-a", "phone-b"), True)
    back, over = lost.update(frozenset({"a", "c"}), NAMES, USB, 3.0)
    assert (back.faults, over, back.lost_at) == ((), lost.faults, {"b": 2.0})


def test_a_larger_loss_replaces_its_part_which_is_not_over():
    host, over = after((1.0, "a b c"), (2.0, "c")).update(frozenset(), NAMES, USB, 3.0)
    assert ([each.subject for each in host.faults], over) == (["usb"], ())


@pytest.mark.parametrize(
    ("options", "announced", "lost"),
    [
        ({"sent_away": ("a",)}, [], ["b"]),
        ({"server_lost": True}, [False], ["a", "b"]),
        ({"dead": ("a", "b")}, [True], ["a", "b"]),
    ],
)
def test_what_the_decision_knows_beside_the_list(options, announced, lost):
    losses, _ = after((1.0, "a b c")).update(frozenset({"c"}), NAMES, USB, 2.0, **options)
    assert ([each.announced for each in losses.faults], sorted(losses.lost_at)) == (announced, lost)
