"""Did a model become slower, and when? A new result against a baseline; changes of level in a history of results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from farm.measure.interval import autocorrelation, student, variance_inflation
from farm.measure.series import MAD_TO_SIGMA, FloatArray

MIN_EFFECT = 0.02  # results of different days differ by more than samples of one run
MIN_BEFORE = 3
MIN_AFTER = 2  # a single slow result is no regression
SURE_OF_LEVELS = 8.0  # standard errors of results within levels; those that wander (AR(1) 0.8) reach 7 by chance
SETTLED_LOST = 4  # two levels and their place leave so many results fewer to estimate the scatter
SURE = 6.0  # standard errors; few results estimate their scatter badly, and every place is tried
MIN_SIGMA = 0.002  # relative: what results of one phone scatter at least
MAX_ASTRAY = 0.1  # of the results, or one, may lie far from the level they are said to be at
ASTRAY = 4.0  # standard deviations from that level, and at least half the least change
MEDIAN_ERROR = math.sqrt(math.pi / 2)  # of a median over that of a mean, for normal values
Z95 = 1.96
BASELINE_CONFIDENCE = 0.99
MIN_RESULTS = 3  # of a baseline; of fewer the scatter between runs is not known
MAX_RESULTS = 20  # the newest ones: older ones say little of the phone as it is


@dataclass(frozen=True, slots=True)
class Point:
    """One stored result."""

    at_s: float  # when; any clock, the same for all
    median_s: float
    low_s: float  # its 95 % interval
    high_s: float
    epoch: str  # of the phone's identity (build fingerprint); results of different epochs are never mixed
    trusted: bool = True  # others are left out


@dataclass(frozen=True, slots=True)
class BaselineRatio:
    """The new result's time over the baseline's: above 1, it is slower."""

    ratio: float
    low: float  # of the interval of 99 %
    high: float
    results: int  # of the baseline


@dataclass(frozen=True, slots=True)
class Change:
    """The level of results changed, and stayed so as far as is known."""

    index: int  # in the points as given: the first result of the new level
    at_s: float
    epoch: str
    before_s: float  # medians of the results' medians
    after_s: float
    results_after: int
    errors: float  # how many standard errors it is away from none

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after_s / self.before_s

    @property
    def slower(self) -> bool:
        """Whether it is a regression."""
        return self.after_s > self.before_s


def changes(points: Sequence[Point]) -> tuple[Change, ...]:
    """Changes of level within each epoch, in the order of time.

    A history is split where results lie nearest to the medians of both sides (least absolute deviations), then each
    part again. The split counts when the medians differ by MIN_EFFECT and by 6 standard errors of what results of one
    level scatter (robustly estimated, and at least what their own intervals say), with at least 3 results before and 2
    after it. One outlier among the results, even the last, is no change. Nor are results that go back and forth between
    levels: while more than a tenth of them (and more than one) lie far from their level, the least change is none.

    Raises:
        ValueError: a time is not finite and above 0.
    """
    usable = []
    for index, point in enumerate(points):
        if not (0 < point.low_s <= point.median_s <= point.high_s < math.inf and math.isfinite(point.at_s)):
            raise ValueError(f"result {index} has no finite median inside its interval")
        if point.trusted:
            usable.append((point.epoch, point.at_s, index))
    found: list[Change] = []
    for _, members in groupby(sorted(usable), key=lambda each: each[0]):
        indices = [index for _, _, index in members]
        found += _settled(points, indices, _split(points, indices))
    return tuple(sorted(found, key=lambda change: (change.at_s, change.index)))


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
    levels = np.log([point.median_s for point in baseline])
    scatter = max(float(np.std(levels, ddof=1)), _sigma(new), MIN_SIGMA)
    middle = math.log(new.median_s) - float(np.mean(levels))
    half = student(0.5 + BASELINE_CONFIDENCE / 2, count - 1) * scatter * math.sqrt(1 + 1 / count)
    return BaselineRatio(math.exp(middle), math.exp(middle - half), math.exp(middle + half), count)


def _split(points: Sequence[Point], indices: list[int]) -> list[Change]:
    levels = np.log([points[index].median_s for index in indices])
    places = range(MIN_BEFORE, len(indices) - MIN_AFTER + 1)
    if not places:
        return []
    place = min(places, key=lambda each: _away(levels, each).sum())
    effect = _effect(levels[:place], levels[place:])
    own = float(np.median([_sigma(points[index]) for index in indices]))
    scatter = max(_scatter(levels), own, MIN_SIGMA)
    errors = effect / (MEDIAN_ERROR * scatter * math.sqrt(1 / place + 1 / (len(indices) - place)))
    if errors < SURE or effect < math.log1p(MIN_EFFECT):
        return []
    first = points[indices[place]]
    change = Change(
        index=indices[place],
        at_s=first.at_s,
        epoch=first.epoch,
        before_s=math.exp(float(np.median(levels[:place]))),
        after_s=math.exp(float(np.median(levels[place:]))),
        results_after=len(indices) - place,
        errors=errors,
    )
    return [
        *_split(points, indices[:place]),
        change,
        *_split(points, indices[place:]),
    ]


def _settled(points: Sequence[Point], indices: list[int], found: list[Change]) -> list[Change]:
    """The changes, without the least of them as long as the results are not at the levels that they say."""
    levels = np.log([points[index].median_s for index in indices])
    while found:
        effects = [abs(math.log(change.ratio)) for change in found]
        starts = [indices.index(change.index) for change in found]
        parts = np.split(levels, starts)
        sides = np.concatenate([part - np.median(part) for part in parts])
        far = max(min(effects) / 2, ASTRAY * max(_scatter(levels), MIN_SIGMA))
        outliers = int((np.abs(sides) > far).sum())
        least = effects.index(min(effects))
        sizes = parts[least].size, parts[least + 1].size
        error = MEDIAN_ERROR * _scatter_within(sides) * math.sqrt(1 / sizes[0] + 1 / sizes[1])
        if (
            outliers <= max(1, MAX_ASTRAY * levels.size)
            and min(effects) >= SURE_OF_LEVELS * error * math.sqrt(levels.size / (levels.size - SETTLED_LOST))
            and min(sizes) >= MIN_AFTER + 2 * bool(outliers)  # where outliers are, two or three more are no level
        ):
            break
        del found[least]
    return found


def _away(levels: FloatArray, place: int) -> FloatArray:
    """How far results lie from the median of their side."""
    sides = [side - np.median(side) for side in (levels[:place], levels[place:])]
    return np.asarray(np.abs(np.concatenate(sides)), dtype=np.float64)


def _effect(before: FloatArray, after: FloatArray) -> float:
    """The distance of two sides' medians (log); of an even number the middle one that is nearer to the other side."""
    slower = np.median(after) > np.median(before)
    low, high = (before, after) if slower else (after, before)
    return max(float(np.sort(high)[(high.size - 1) // 2] - np.sort(low)[low.size // 2]), 0.0)


def _scatter(levels: FloatArray) -> float:
    """The standard deviation of results of one level, from each one's distance to the next, which levels hardly change.

    Few results estimate it badly: it is taken higher for them.
    """
    return MAD_TO_SIGMA * float(np.median(np.abs(np.diff(levels)))) * math.sqrt(levels.size / (levels.size - 2) / 2)


def _scatter_within(sides: FloatArray) -> float:
    """The standard deviation of results around their side's median, so much higher as they resemble their neighbours.

    Results that wander (a phone ages, a room warms) differ little from one to the next, and far in the long run. One
    outlier among them does not count.
    """
    away = np.sort(np.abs(sides))[:-1]
    sigma = math.sqrt(float(away @ away) / max(sides.size - 3, 1))
    return sigma * math.sqrt(variance_inflation(autocorrelation(sides), sides.size))


def _sigma(point: Point) -> float:
    return (math.log(point.high_s) - math.log(point.low_s)) / 2 / Z95
