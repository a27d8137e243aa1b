"""The search for the first wrong operator: always one at fault, never one that is not, in few looks."""

from math import log

from hypothesis import given
from hypothesis import strategies as st

from farm.compiler.locate_rules import OperatorSearch, Tensor, choose, first_wrong, unseen

ROOM = 1000


class Device:
    """Operators at fault, and those whose output is right whatever they read, as a comparison with 0 may be."""

    def __init__(self, tensors, faults=(), masks=()):
        self.tensors, self.faults, self.looks = tensors, set(faults), []
        self.wrong = set()
        for place, each in enumerate(tensors):
            if place in self.faults or (place not in masks and self.wrong & {*each.inputs}):
                self.wrong.add(place)

    def look(self, places):
        self.looks.append(places)
        return self.wrong & {*places}

    def find(self, outputs, room=ROOM):
        return first_wrong(self.tensors, outputs, self.look, lambda place: place not in self.faults, room)


@st.composite
def networks(draw, branches=3):
    sizes = draw(st.lists(st.integers(1, 1200), min_size=1, max_size=40))
    return [
        Tensor(tuple(draw(st.lists(st.integers(0, at - 1), max_size=branches, unique=True))) if at else (), size)
        for at, size in enumerate(sizes)
    ]


@st.composite
def devices(draw):
    tensors = draw(networks())
    places = st.lists(st.integers(0, len(tensors) - 1), max_size=3)
    outputs = draw(st.lists(st.integers(0, len(tensors) - 1), min_size=1, max_size=3))
    return Device(tensors, draw(places), draw(places)), {*outputs}


@given(devices(), st.integers(1, 20_000))
def test_an_operator_at_fault_is_named_if_an_output_is_wrong_and_no_other_ever(made, room):
    device, outputs = made
    found = device.find(outputs, room)
    assert found.looks == len(device.looks)
    if device.wrong & outputs or found.first is not None:
        assert found.first in device.faults
    if found.first is not None:
        seen = {place for look in device.looks for place in look}
        inputs = device.tensors[found.first].inputs
        assert {*inputs} <= seen
        assert not {*inputs} & (device.wrong - {*found.explained})
    if not device.faults:
        assert (found.first, found.explained) == (None, ())


@given(devices(), st.integers(1, 20_000))
def test_a_look_has_what_fits_and_nothing_twice(made, room):
    device, outputs = made
    device.find(outputs, room)
    looked = [place for look in device.looks for place in look]
    assert len(looked) == len(set(looked))
    for look in device.looks[1:]:
        assert len(look) == 1 or sum(device.tensors[place].size_bytes for place in look) <= room


@given(st.integers(1, 400), st.integers(1, 60), st.data())
def test_a_chain_takes_few_looks(length, fit, data):
    fault = data.draw(st.integers(0, length - 1))
    chain = [Tensor((at - 1,) if at else (), 10) for at in range(length)]
    device = Device(chain, [fault])
    found = device.find([length - 1], 10 * fit)
    assert found == OperatorSearch(fault, found.looks, ())
    assert found.looks <= 2 + log(length) / log(max(4 / 3, (fit + 1) / 2))


def test_one_look_suffices_where_all_fits():
    diamond = [Tensor((), 1), Tensor((0,), 1), Tensor((0,), 1), Tensor((1, 2), 1)]
    assert Device(diamond, [2]).find([3]) == OperatorSearch(2, 1, ())
    assert Device(diamond).find([3]) == OperatorSearch(None, 1, ())


def test_errors_that_add_up_are_no_operators_fault():
    chain = [Tensor((), 1), Tensor((0,), 1), Tensor((1,), 1)]
    device = Device(chain)
    device.wrong = {1, 2}
    assert device.find([2]) == OperatorSearch(None, 1, (1, 2))
    device.faults = {2}
    assert device.find([2]).first == 2


def test_small_tensors_are_preferred():
    tensors = [Tensor((), size) for size in (900, 5, 900, 900, 7, 900)]
    assert choose(range(6), tensors, 20) == [1, 4]
    assert choose(range(6), tensors, 1) == [1]
    assert choose(range(6), tensors, 1, at_least=0) == []
    assert choose([], tensors, 1) == []


def test_what_lies_before_a_tensor_that_is_right_is_not_looked_at():
    chain = [Tensor((at - 1,) if at else (), 1) for at in range(6)]
    assert unseen(chain, [5], {2}) == [3, 4]
