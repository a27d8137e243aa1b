"""Servers that register themselves, and the memory of slow peers: plain values, a clock that the test moves."""

import sys

import pytest

from farm.tvm_server import external_rules
from farm.tvm_server.external_rules import (
    MAX_OFFERS,
    MAX_OFFERS_PER_CONNECTION,
    Offer,
    OfferRegistry,
    RegistrationRefused,
)

SILENT_AFTER_S = 30.0


class Lab:
    def __init__(self):
        self.now = 0.0
        self.registry = OfferRegistry(lambda: self.now, SILENT_AFTER_S)

    def server(self, *names, key="board"):
        registration = self.registry.register()
        for name in names:
            self.registry.put(registration, offer(name, key))
        return registration

    def taken(self, key="board"):
        names = []
        while (found := self.registry.take(key)) is not None:
            names.append(found.match_key.partition(":")[2])
        return names


def offer(name, key="board"):
    return Offer(key, "127.0.0.1", 9090, f"{key}:{name}")


@pytest.fixture
def lab():
    return Lab()


def steps(action):
    """Lines of the registry's code that `action` runs."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if frame.f_code.co_filename != external_rules.__file__:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def test_first_in_first_out_within_a_key(lab):
    lab.server("a", "b")
    lab.server("x", key="other")
    lab.server("c")
    assert lab.registry.free() == {"board": 3, "other": 1}
    assert lab.taken() == ["a", "b", "c"]
    assert lab.registry.free() == {"other": 1}


def test_the_same_match_key_again_replaces_the_offer_and_goes_to_the_end(lab):
    first = lab.server("a", "b")
    lab.registry.put(first, Offer("board", "127.0.0.1", 9999, "board:a"))
    assert lab.registry.pending(first) == ["board:b", "board:a"]
    assert [lab.registry.take("board").port for _ in range(2)] == [9090, 9999]


def test_two_connections_with_one_match_key_do_not_touch_each_other(lab):
    honest, thief = lab.server("a"), lab.server("a")
    lab.registry.drop(thief)
    assert lab.registry.pending(honest) == ["board:a"]
    assert lab.taken() == ["a"]


def test_a_connection_takes_its_offers_with_it_and_no_others(lab):
    first, _ = lab.server("a", "b"), lab.server("c")
    lab.registry.drop(first)
    assert lab.taken() == ["c"]
    assert lab.registry.free() == {}


def test_a_silent_server_counts_again_when_it_speaks(lab):
    frozen = lab.server("a")
    lab.now = SILENT_AFTER_S
    lab.server("b")
    assert lab.registry.free() == {"board": 2}
    lab.now += 1
    assert lab.registry.free() == {"board": 1}
    assert lab.registry.take("board").match_key == "board:b"
    assert lab.registry.take("board") is None
    assert lab.registry.renew(frozen) == ("board",)
    assert lab.registry.renew(frozen) == ()
    assert lab.taken() == ["a"]


def test_a_silent_server_that_leaves_leaves_nothing(lab):
    frozen = lab.server("a")
    frozen.servers = {"board": ("127.0.0.1", 9090)}
    lab.now = SILENT_AFTER_S + 1
    assert lab.registry.free() == {}
    assert list(lab.registry.servers()) == [("board", "127.0.0.1", 9090)]
    lab.registry.drop(frozen)
    assert list(lab.registry.servers()) == []
    assert lab.taken() == []


def test_offers_are_limited_per_connection_and_in_all(lab):
    full = [
        lab.server(*(f"{number}-{index}" for index in range(MAX_OFFERS_PER_CONNECTION)))
        for number in range(MAX_OFFERS // MAX_OFFERS_PER_CONNECTION)
    ]
    with pytest.raises(RegistrationRefused, match="one connection"):
        lab.registry.put(full[0], offer("more"))
    late = lab.server()
    with pytest.raises(RegistrationRefused, match="all connections"):
        lab.registry.put(late, offer("late"))
    lab.registry.put(full[1], offer("1-0"))  # replaces
    lab.registry.drop(full[0])
    lab.registry.put(late, offer("late"))
    assert lab.registry.free()["board"] == MAX_OFFERS - MAX_OFFERS_PER_CONNECTION + 1


@pytest.mark.parametrize("silent", [False, True])
def test_nothing_takes_longer_because_others_have_many_offers(silent):
    def costs(others):
        lab = Lab()
        for number in range(others):
            lab.server(*(f"{number}-{index}" for index in range(100)))
        if silent:
            lab.now = SILENT_AFTER_S + 1
            lab.registry.free()
        newest = lab.server("a", "b", "c")
        return [
            steps(lambda: lab.registry.put(newest, offer("d"))),
            steps(lambda: lab.registry.take("board")),
            steps(lambda: lab.registry.renew(newest)),
            steps(lambda: lab.registry.free()),
            steps(lambda: lab.registry.drop(newest)),
        ]

    assert costs(50) == costs(1)
