"""Whose connections are ended, by events that libzmq's monitor might tell."""

import os
import resource
import socket
from itertools import chain

import pytest
import zmq

from farm.common.limiter import ClientLimiter, Limiter
from farm.control import limits
from farm.control.limits import OWNER_PART, BusyError, ConnectionLimiter

OPENED, ENDED = zmq.EVENT_ACCEPTED, zmq.EVENT_DISCONNECTED


class Connections:
    """Connections of a door, as pairs; whose each is."""

    def __init__(self):
        self.owners = {}
        self.pairs = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.limiter = ConnectionLimiter("test", lambda connection: self.owners[connection.fileno()])
        self.limiter._admission = ClientLimiter(Limiter.shared(8, OWNER_PART))

    def open(self, owner):
        """The number of a new connection that the monitor tells of."""
        there = socket.create_connection(self.listener.getsockname())
        here, _ = self.listener.accept()
        self.pairs.append((here, there))
        self.owners[here.fileno()] = owner
        self.limiter._on_event(OPENED, here.fileno())
        return here.fileno()

    def hear(self, number, sender, route=1):
        """Note a message of the connection with that number, the `route`th that libzmq has taken."""
        self.limiter.note_sender(number, sender, b"\0" + route.to_bytes(4))

    def reuse(self, number, owner):
        """Let a new connection have the number."""
        here, there = next(pair for pair in self.pairs if pair[0].fileno() == number)
        there.close()
        self.pairs.append((here, socket.create_connection(self.listener.getsockname())))
        new, _ = self.listener.accept()
        with new:
            os.dup2(new.fileno(), number)
        self.owners[number] = owner

    def reads(self, number):
        """Whether a connection still waits for what comes, instead of being at its end."""
        here = next(here for here, _ in self.pairs if here.fileno() == number)
        try:
            return bool(here.recv(1, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True


@pytest.fixture
def door(monkeypatch):
    monkeypatch.setattr(limits, "MAX_REFUSED", 1)
    monkeypatch.setattr(limits, "MAX_REFUSED_PER_OWNER", 1)
    door = Connections()
    yield door
    for end in (door.listener, *chain.from_iterable(door.pairs)):
        end.close()


def test_of_those_beyond_an_owners_share_the_latest_stays_for_a_refusal_and_others_come_in(door):
    many = [door.open("ann") for _ in range(2 + 2)]
    assert [door.reads(each) for each in many] == [True, True, False, True]
    bob = door.open("bob")
    assert door.reads(bob)
    for admitted in (*many[:2], bob):
        door.limiter.check(admitted)
    with pytest.raises(BusyError, match="ann has 4 connections to the farm, at most 2 are allowed") as caught:
        door.limiter.check(many[-1])
    assert "end some of its farm programs" in caught.value.hint
    assert (door.limiter.refusals, len(door.limiter)) == (2, 5)
    assert "ann opens too many connections to control socket test" in door.limiter.problem
    for each in many[:-1]:
        door.limiter._on_event(ENDED, each)
    door.limiter.check(many[-1])  # it is within the limits now
    door.limiter.check(door.open("ann"))


def test_a_full_listener_admits_nobody_and_names_the_owner_of_most(door):
    owners = [str(number // 2) for number in range(8)]
    assert all(door.reads(door.open(owner)) for owner in owners)
    late, later = door.open("late"), door.open("later")
    assert (door.reads(late), door.reads(later)) == (False, True)
    with pytest.raises(BusyError, match="the farm has all its 8 connections, 2 with 0"):
        door.limiter.check(later)


def test_the_oldest_connection_without_a_message_makes_room_once_it_had_time_for_one(door, numbers):
    numbers(limits, SPEAK_S=0.0)
    speaks, silent = door.open("10.0.0.1"), door.open("10.0.0.1")
    door.hear(speaks, "ann")
    late = door.open("10.0.0.1")
    assert [door.reads(each) for each in (speaks, silent, late)] == [True, False, True]
    door.limiter.check(late)
    door.limiter._on_event(ENDED, silent)
    assert len(door.limiter) == 2


def test_the_connections_of_one_are_ended_and_no_others(door):
    ann, silent, bob = door.open("10.0.0.1"), door.open("10.0.0.1"), door.open("10.0.0.2")
    door.hear(ann, "ann")
    door.hear(bob, "bob")
    assert door.limiter.cut_connections("ann") == 1
    assert [door.reads(each) for each in (ann, silent, bob)] == [False, True, True]


def test_whoever_has_the_name_anew_is_not_ended_with_who_had_it(door):
    old, new = door.open("10.0.0.1"), door.open("10.0.0.1")
    door.hear(old, "ann")
    leaving = door.limiter.mark_leaving("ann")
    door.hear(new, "ann")
    assert door.limiter.cut_connections(leaving) == 1
    assert [door.reads(each) for each in (old, new)] == [False, True]


def test_a_number_used_again_is_somebody_elses(door):
    """A client in its handshake was shut down both ways, on which libzmq may abort."""
    number, other = door.open("10.0.0.1"), door.open("10.0.0.1")
    door.hear(number, "ann")
    os.dup2(other, number)
    assert door.limiter.cut_connections("ann") == 0
    assert door.reads(other)


def test_who_goes_on_sending_over_a_connection_that_is_to_end_is_ended(door):
    number = door.open("10.0.0.1")
    door.hear(number, "ann")
    leaving = door.limiter.mark_leaving("ann")
    door.hear(number, "ann")
    assert door.limiter.cut_connections(leaving) == 1
    assert not door.reads(number)


@pytest.mark.parametrize("order", [["ann", "ann"], ["ann", "bob", "ann"], ["bob", "ann"], ["ann later", "bob"]])
def test_what_was_sent_before_the_number_was_used_again_is_read_late(door, order):
    """Ann left, bob has the number of her connection, and some of her messages wait to be read."""
    number = door.open("10.0.0.1")
    route = {"ann": (1 << 32) - 1, "bob": 0}  # libzmq's number comes round
    if order[0] == "ann":
        door.hear(number, "ann", route["ann"])
        order = order[1:]
    door.reuse(number, "10.0.0.1")
    for sender in order:
        name = sender.split()[0]
        door.hear(number, name, route[name])
    assert door.limiter.cut_connections("ann") == 0
    assert door.reads(number)


@pytest.mark.parametrize("late", [OPENED, ENDED])
def test_an_event_of_the_number_that_is_read_after_the_first_message_changes_nothing(door, late):
    """The end of the probe that had the number before, or the connection's own begin: the thread reads when it can."""
    number = door.open("10.0.0.1")
    door.hear(number, "ann")
    door.limiter._on_event(late, number)
    assert door.limiter.cut_connections("ann") == 1
    assert not door.reads(number)


def test_unknown_connections_are_left_alone(door):
    number = door.open("10.0.0.1")
    door.hear(number, "ann")
    door.owners[number] = None  # used again before the monitor told so
    assert door.limiter.cut_connections("ann") == 0
    assert door.reads(number)
    door.hear(1 << 20, "ann")  # no descriptor at all
    assert door.limiter.cut_connections("ann") == 0


SOFT, HARD = resource.getrlimit(resource.RLIMIT_NOFILE)


@pytest.mark.parametrize(("soft", "most", "now"), [(200, 300, 300), (300, 200, 300), (200, HARD + 1, HARD)])
def test_the_daemon_takes_the_descriptors_it_may_have(soft, most, now):
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, HARD))
    try:
        limits.raise_descriptor_limit(most)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (now, HARD)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, HARD))
