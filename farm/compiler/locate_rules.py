"""The first wrong operator of a model, found by a few looks at its tensors: pure decisions, without TVM.

A model is a list of tensors, each behind those that it is computed from. A look runs the model on a device, with some
of its tensors as outputs, and says which of them differ from a reference's. A wrong tensor whose inputs are all right
is an operator's fault, unless the reference computes the same from the device's own inputs: then small errors of the
inputs, each within the limits, have added up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a model."""

    inputs: tuple[int, ...]  # the places of those that it is computed from, all before its own
    size_bytes: int


Look = Callable[[Sequence[int]], Collection[int]]
"""Fetches the tensors at these places from the device; returns the places of those that are wrong."""


@dataclass(frozen=True, slots=True)
class OperatorSearch:
    """The end of a search."""

    first: int | None  # the place of the first wrong operator's output; None: no operator is at fault
    looks: int
    explained: tuple[int, ...]  # wrong tensors that the reference computes from the device's own inputs, too


def first_wrong(
    tensors: Sequence[Tensor],
    outputs: Iterable[int],
    look: Look,
    explains: Callable[[int], bool],
    room_bytes: int,
) -> OperatorSearch:
    """Search for the first operator that computes a wrong tensor from right ones.

    It finds one whenever an output is wrong and the looks agree with each other: one of the operators at fault, and
    none before it is at fault for a tensor that was looked at.

    Args:
        tensors: of the model.
        outputs: places of the model's own outputs.
        look: fetches tensors.
        explains: whether the reference computes a wrong tensor from the device's own inputs, all of which were fetched.
        room_bytes: so much the tensors of one look may have, where at least one fits.
    """
    right: set[int] = set()
    wrong: set[int] = set()
    explained: list[int] = []
    wanted = sorted(set(outputs))
    room_bytes_left = room_bytes - sum(tensors[each].size_bytes for each in wanted)
    wanted += choose(unseen(tensors, wanted, set()), tensors, room_bytes_left, at_least=0)
    looks = 0
    while True:
        found = set(look(tuple(sorted(wanted))))
        looks += 1
        wrong |= found
        right.update(set(wanted) - found)
        while True:
            if not wrong:
                return OperatorSearch(None, looks, tuple(explained))
            suspect = min(wrong)
            before = unseen(tensors, [suspect], right)
            if before:
                wanted = choose(before, tensors, room_bytes)
                break
            if not explains(suspect):
                return OperatorSearch(suspect, looks, tuple(explained))
            wrong.remove(suspect)
            right.add(suspect)
            explained.append(suspect)


def unseen(tensors: Sequence[Tensor], places: Iterable[int], right: Collection[int]) -> list[int]:
    """The tensors from which those at `places` are computed, up to those that are known to be right; in order."""
    found: set[int] = set()
    waiting = list(places)
    given = set(waiting)
    while waiting:
        for each in tensors[waiting.pop()].inputs:
            if each not in found and each not in right and each not in given:
                found.add(each)
                waiting.append(each)
    return sorted(found)


def choose(places: Sequence[int], tensors: Sequence[Tensor], room_bytes: int, at_least: int = 1) -> list[int]:
    """As many of the places as have room, evenly apart: of each run of neighbours the smallest near its middle."""
    for run in range(1, len(places) + 1):
        picked = [_smallest(each, tensors) for each in _runs(places, run)]
        if sum(tensors[each].size_bytes for each in picked) <= room_bytes:
            return picked
    return [_smallest(places, tensors)] if at_least and places else []


def _runs(places: Sequence[int], size: int) -> list[Sequence[int]]:
    return [places[at : at + size] for at in range(0, len(places), size)]


def _smallest(run: Sequence[int], tensors: Sequence[Tensor]) -> int:
    """Near the middle, so that a look for one tensor alone leaves three quarters of a run at most."""
    edge = len(run) // 4
    return min(run[edge : len(run) - edge], key=lambda each: tensors[each].size_bytes)
