"""Did a model become slower, and when? A new result against a baseline; changes of level in a history of results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from farm.measure.interval import student
from farm.measure.level_changes import level_changes

MIN_SIGMA = 0.002  # relative: what results of one phone scatter at least
Z95 = 1.96
BASELINE_CONFIDENCE = 0.99
MIN_RESULTS = 3  # of a baseline; of fewer the scatter between runs is not known
MAX_RESULTS = 20  # the newest ones: older ones say little of the phone as it is


@dataclass(frozen=True, slots=True)
class Point:
    """One stored result."""

    at_s: float  # when; any clock, the same for all
    value: float  # above 0, in any unit, the same for all
    low: float  # its 95 % interval
    high: float
    epoch: str  # of the phone's identity (build fingerprint); results of different epochs are never mixed
    trusted: bool = True  # others are left out


@dataclass(frozen=True, slots=True)
class BaselineRatio:
    """The new result over the baseline: of times, above 1 it is slower."""

    ratio: float
    low: float  # of the interval of 99 %
    high: float
    results: int  # of the baseline


@dataclass(frozen=True, slots=True)
class Change:
    """The level of results changed."""

    index: int  # in the points as given: the first result of the new level
    at_s: float
    epoch: str
    before: float  # medians of the results' values
    after: float
    results_after: int
    errors: float  # how many standard errors it is away from none
    until: int | None = None  # in the points as given: the first result after the level; None: the change lasts

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after / self.before

    @property
    def rose(self) -> bool:
        """Whether the new level is the higher one."""
        return self.after > self.before


def changes(points: Sequence[Point]) -> tuple[Change, ...]:
    """Changes of level within each epoch, in the order of time; untrusted results are left out.

    A change is at least 2 %, with three results before it and after it (four, where another change follows), and far
    more than results wander, drift, alternate between builds or stray (`farm.measure.level_changes`). A change that the
    next change undoes has `until`. One outlier, even the newest result, is no change.

    Raises:
        ValueError: a result has no finite value above 0 inside its interval, or no finite time.
    """
    epochs: dict[str, list[int]] = {}
    for index, point in enumerate(points):
        if not (0 < point.low <= point.value <= point.high < math.inf and math.isfinite(point.at_s)):
            raise ValueError(f"result {index} has no finite value inside its interval")
        if point.trusted:
            epochs.setdefault(point.epoch, []).append(index)
    found: list[Change] = []
    for members in epochs.values():
        found += _changes_of_epoch(points, sorted(members, key=lambda index: (points[index].at_s, index)))
    return tuple(sorted(found, key=lambda change: (change.at_s, change.index)))


def _changes_of_epoch(points: Sequence[Point], indices: Sequence[int]) -> list[Change]:
    logs = np.log([points[index].value for index in indices])
    found = level_changes(logs, np.array([_own_error(points[index]) for index in indices]))
    levels = np.split(logs, [each.index for each in found])
    return [
        Change(
            index=indices[each.index],
            at_s=points[indices[each.index]].at_s,
            epoch=points[indices[each.index]].epoch,
            before=math.exp(float(np.median(before))),
            after=math.exp(float(np.median(after))),
            results_after=after.size,
            errors=each.errors,
            until=None if each.until is None else indices[each.until],
        )
        for each, before, after in zip(found, levels, levels[1:], strict=False)
    ]


def ratio_to_baseline(baseline: Sequence[Point], new: Point) -> BaselineRatio:
    """The ratio and the interval in which a new result of the same build would lie (a prediction interval).

    Each run of one build has its own level: temperature, where memory lies. The results of the baseline show how much
    levels differ, so the interval is Student's t of their scatter, or of the interval of the new result if that is
    wider. An outlier among the baseline widens it.

    Raises:
        ValueError: the baseline has fewer than `MIN_RESULTS` results.
    """
    count = len(baseline)
    if count < MIN_RESULTS:
        raise ValueError(f"{count} results are no baseline; {MIN_RESULTS} are needed")
    levels = np.log([point.value for point in baseline])
    scatter = max(float(np.std(levels, ddof=1)), _own_error(new), MIN_SIGMA)
    middle = math.log(new.value) - float(np.mean(levels))
    half = student(0.5 + BASELINE_CONFIDENCE / 2, count - 1) * scatter * math.sqrt(1 + 1 / count)
    return BaselineRatio(math.exp(middle), math.exp(middle - half), math.exp(middle + half), count)


def _own_error(point: Point) -> float:
    """The standard error that the result's interval says, relative."""
    return (math.log(point.high) - math.log(point.low)) / 2 / Z95
