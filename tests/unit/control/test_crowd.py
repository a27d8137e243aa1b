"""Whose connections are ended, by events that libzmq's monitor might tell."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import zmq

from farm.control.crowd import SHARE, Crowd

OPENED, ENDED = zmq.EVENT_ACCEPTED, zmq.EVENT_DISCONNECTED


class Door:
    """Connections of a door, as pairs; whose each is."""

    def __init__(self) -> None:
        self.owners: dict[int, str | None] = {}
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        self.crowd = Crowd("test", lambda connection: self.owners[connection.fileno()])
        self.crowd.most = 8

    def open(self, owner: str | None) -> int:
        """The number of a new connection that the monitor tells of."""
        here, there = socket.socketpair()
        there.setblocking(False)
        self.pairs.append((here, there))
        self.owners[here.fileno()] = owner
        self.crowd._heard(OPENED, here.fileno())
        return here.fileno()

    def reads(self, number: int) -> bool:
        """Whether a connection still reads what comes."""
        there = next(there for here, there in self.pairs if here.fileno() == number)
        try:
            there.send(b"x")
        except BrokenPipeError:
            return False
        return True


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door()
    yield door
    for pair in door.pairs:
        for end in pair:
            end.close()


def test_what_is_beyond_an_owners_share_is_cut_and_others_come_in(door: Door) -> None:
    many = [door.open("ann") for _ in range(door.crowd.most // SHARE + 1)]
    assert [door.reads(each) for each in many] == [True, True, False]
    assert door.reads(door.open("bob"))
    assert (door.crowd.cut, len(door.crowd)) == (1, 4)
    assert "ann opens too many connections to door test" in door.crowd.problem
    for each in many:
        door.crowd._heard(ENDED, each)
    assert door.reads(door.open("ann"))


def test_a_full_door_lets_nobody_in(door: Door) -> None:
    owners = [str(number // 2) for number in range(8)]
    assert all(door.reads(door.open(owner)) for owner in owners)
    assert not door.reads(door.open("late"))


def test_the_connections_of_one_are_ended_and_no_others(door: Door) -> None:
    ann, silent, bob = door.open("10.0.0.1"), door.open("10.0.0.1"), door.open("10.0.0.2")
    door.crowd.spoke(ann, "ann")
    door.crowd.spoke(bob, "bob")
    assert door.crowd.end("ann") == 1
    assert [door.reads(each) for each in (ann, silent, bob)] == [False, True, True]


def test_whoever_has_the_name_anew_is_not_ended_with_who_had_it(door: Door) -> None:
    old, new = door.open("10.0.0.1"), door.open("10.0.0.1")
    door.crowd.spoke(old, "ann")
    leaving = door.crowd.leaving("ann")
    door.crowd.spoke(new, "ann")
    assert door.crowd.end(leaving) == 1
    assert [door.reads(each) for each in (old, new)] == [False, True]


@pytest.mark.parametrize("told", [OPENED, ENDED])
def test_a_number_used_again_is_somebody_elses(door: Door, told: int) -> None:
    """A client in its handshake was shut down both ways, on which libzmq may abort."""
    number = door.open("10.0.0.1")
    door.crowd.spoke(number, "ann")
    door.crowd._heard(told, number)
    assert door.crowd.end("ann") == 0
    assert door.reads(number)


def test_what_is_none_of_the_door_is_left_alone(door: Door) -> None:
    number = door.open("10.0.0.1")
    door.crowd.spoke(number, "ann")
    door.owners[number] = None  # used again before the monitor told so
    assert door.crowd.end("ann") == 0
    assert door.reads(number)
    door.crowd.spoke(1 << 20, "ann")  # no descriptor at all
    assert door.crowd.end("ann") == 0
