"""Speed under a load that does not end: medians per minute, when the phone throttles, the plateau. Pure.

A phone that runs a model for half an hour becomes warm and lowers its clock: in steps, little by little, or back and
forth. `sustained` compares the end of the run with its beginning, whatever the form. It cuts the run into short slices,
finds the changes of level between them as in a history of results, and moves each to the sample where it happened. The
first change to a slower level is the throttling. A curve that approaches its end exponentially is fitted too, and the
form with more evidence (BIC) counts. The plateau is what follows the last change, if it lasted and its buckets agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from farm.measure.interval import MedianEstimate, autocorrelation, median_interval, variance_inflation
from farm.measure.patterns import find_modes
from farm.measure.regression import Change, Point, changes
from farm.measure.series import FloatArray, SampleSeries

BUCKET_S = 60.0
SLICES_IN_BUCKET = 6
MIN_SLICES = 60  # a run shorter than ten buckets has shorter slices
BEGINNINGS = (1 / 8, 1 / 4, 1 / 2, 1.0)  # of the run
MIN_PLATEAU = 0.15  # of the run; a level that came later may be on its way to the next
MAX_ASTRAY = 0.1  # of a plateau's buckets may disagree with it
END_BUCKETS = 2  # the last minutes
MIN_EFFECT = 0.02  # relative: a smaller change of the speed is none
MIN_SWING = 0.03  # relative: two levels nearer are no oscillation
MIN_SWINGS = 4  # from one level to the other, in the later half of a run
MIN_EVIDENCE = 10.0  # BIC: very strong (Kass and Raftery 1995)
TIME_CONSTANTS, ONSETS = 24, 16  # of the curves that are tried
SETTLED = 0.01  # relative: a curve so near to its end has reached it


class CourseForm(StrEnum):
    """How the speed changed over the run."""

    STEADY = "steady"
    STEPS = "steps"
    EXPONENTIAL = "exponential"
    OSCILLATION = "oscillation"


@dataclass(frozen=True, slots=True)
class SpeedBucket:
    """The samples of a stretch of the run, a minute if not said otherwise."""

    start_s: float  # since the first sample
    estimate: MedianEstimate


@dataclass(frozen=True, slots=True)
class SustainedSpeed:
    """What a long run says of a phone."""

    buckets: tuple[SpeedBucket, ...]  # in the order of time; a stretch without samples has none
    fresh: MedianEstimate  # before the throttling; in the first bucket where none was found
    end: MedianEstimate  # in the last two buckets; means of whole periods where the speed goes back and forth
    form: CourseForm
    time_constant_s: float | None  # of an exponential course
    period_s: float | None  # of an oscillation, in the mean
    throttled_after_s: float | None  # since the first sample; None: no change to a slower level was found
    # After the last change. None: the run ended too soon after it, or its buckets do not agree.
    plateau: MedianEstimate | None
    plateau_from_s: float | None

    @property
    def slowdown(self) -> float:
        """The time of a run at the end over that of the fresh phone."""
        return self.end.median_s / self.fresh.median_s


def sustained(samples: SampleSeries, bucket_s: float = BUCKET_S) -> SustainedSpeed:
    """The run's buckets, its form, its slowdown, its time to throttle and its plateau.

    Raises:
        ValueError: `bucket_s` is not above 0.
    """
    if not bucket_s > 0:
        raise ValueError(f"a bucket of {bucket_s:g} s has no samples")
    since_s = samples.start_s - samples.start_s[0]
    run_s = float(since_s[-1] + samples.seconds[-1])
    slice_s = min(bucket_s / SLICES_IN_BUCKET, run_s / MIN_SLICES)
    period_s = _period(samples, since_s, slice_s)
    means_s = samples.seconds if period_s is None else _means(samples.seconds, since_s, period_s)
    # Where both levels fall into a bucket, its median is one of them by chance.
    fast = period_s is not None and period_s <= bucket_s
    calm = replace(samples, seconds=means_s) if fast else samples
    log_s = np.log(calm.seconds)
    slices = list(_cut(since_s, slice_s).values())
    buckets = tuple(
        SpeedBucket(number * bucket_s, median_interval(log_s[places]))
        for number, places in _cut(since_s, bucket_s).items()
    )
    points = [_point(calm, places) for places in slices]
    found = changes(points)
    first = _throttling(points)
    throttled = None if first is None else _place(log_s, slices, first)
    begins = [0, *(_place(log_s, slices, change) for change in found)]
    curve = None if period_s is not None else _Curve.fitted(points, [change.index for change in found], run_s)
    fresh = median_interval(log_s[:throttled] if throttled else log_s[since_s < bucket_s])
    last = begins[-1] if throttled is None or len(begins) > 1 else samples.count
    if curve is not None:
        throttled = throttled or _first(since_s >= curve.when(math.log1p(MIN_EFFECT)))
        fresh = _scaled(fresh, math.exp(curve.level) / fresh.median_s)
        last = _first(since_s >= curve.when(curve.rise(run_s) - math.log1p(SETTLED)))
    from_s = max(float(since_s[min(last, samples.count - 1)]), 0.0)
    plateau = median_interval(log_s[last:]) if last < samples.count else None
    lasts = plateau is not None and run_s - from_s >= MIN_PLATEAU * run_s and _agree(buckets, from_s, plateau)
    if curve is not None and curve.left(run_s) > math.log1p(SETTLED):
        lasts = False
    at_end = since_s >= max(run_s - END_BUCKETS * bucket_s, float(since_s[begins[-1]]))
    steps = CourseForm.STEPS if throttled is not None or found else CourseForm.STEADY
    return SustainedSpeed(
        buckets=buckets,
        fresh=fresh,
        end=median_interval(np.log(means_s[at_end])),
        form=CourseForm.OSCILLATION if period_s else CourseForm.EXPONENTIAL if curve else steps,
        time_constant_s=None if curve is None else curve.time_constant_s,
        period_s=period_s,
        throttled_after_s=None if throttled is None else float(since_s[throttled]),
        plateau=plateau if lasts else None,
        plateau_from_s=from_s if lasts else None,
    )


def _first(holds: npt.NDArray[np.bool_]) -> int:
    """The first place where it holds; behind the last one where it does not."""
    return int(np.argmax(holds)) if holds.any() else holds.size


def _scaled(estimate: MedianEstimate, factor: float) -> MedianEstimate:
    return replace(
        estimate,
        median_s=estimate.median_s * factor,
        low_s=estimate.low_s * factor,
        high_s=estimate.high_s * factor,
    )


def _agree(buckets: tuple[SpeedBucket, ...], from_s: float, plateau: MedianEstimate) -> bool:
    """Whether buckets of a plateau are within 2 % of it, as far as their intervals say."""
    inside = [each.estimate for each in buckets if each.start_s >= from_s]
    astray = sum(
        not each.low_s * (1 - MIN_EFFECT) <= plateau.median_s <= each.high_s * (1 + MIN_EFFECT) for each in inside
    )
    return astray <= MAX_ASTRAY * len(inside)


def _period(samples: SampleSeries, since_s: FloatArray, slice_s: float) -> float | None:
    """The mean period of a speed that goes back and forth in the later half of the run; None: it does not."""
    half = since_s >= since_s[-1] / 2
    late, late_s = samples.seconds[half], since_s[half]
    cut = list(_cut(late_s - late_s[0], slice_s).values())
    slices = np.array([np.median(late[each]) for each in cut])
    for values, at_s in ((late, late_s), (slices, late_s[[each[0] for each in cut]])):
        if values.size < MIN_SWINGS or at_s[0] == at_s[-1]:
            continue
        level = np.log(values) - np.polyval(np.polyfit(at_s, np.log(values), 1), at_s)
        modes = find_modes(level)
        if modes is None or modes.distance < MIN_SWING:
            continue
        low, high = np.quantile(level, [modes.low_share / 2, (1 + modes.low_share) / 2])  # medians of both
        sides = np.where(level < low + (high - low) / 4, -1, np.where(level > high - (high - low) / 4, 1, 0))
        swings = np.flatnonzero(np.diff(sides[sides != 0]))
        if swings.size >= MIN_SWINGS:
            return 2 * float(np.ptp(at_s[sides != 0][swings])) / (swings.size - 1)
    return None


def _means(seconds: FloatArray, since_s: FloatArray, period_s: float) -> FloatArray:
    """The mean of each sample and those before it, over whole periods that last as long as a few samples."""
    spacing_s = max(float(np.median(np.diff(since_s))), 1e-9)
    width = max(2, round(period_s * max(1, math.ceil(8 * spacing_s / period_s)) / spacing_s))
    sums = np.concatenate([[0.0], np.cumsum(seconds)])
    ends = np.arange(1, seconds.size + 1)
    begins = np.maximum(ends - width, 0)
    return np.asarray((sums[ends] - sums[begins]) / (ends - begins), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Curve:
    """Log seconds that rise from `level` by `size`, and approach the end exponentially from `onset_s` on."""

    level: float
    size: float
    onset_s: float
    time_constant_s: float

    @classmethod
    def fitted(cls, points: list[Point], steps: list[int], run_s: float) -> _Curve | None:
        """The curve nearest to the slices by least squares; None: it is small, or steps or no change say as much."""
        count = len(points)
        if count < MIN_SLICES // 2:
            return None
        at_s = np.array([point.at_s for point in points]) - points[0].at_s + run_s / count / 2
        log_s = np.log([point.value for point in points])
        best, least = None, math.inf
        for onset_s in np.linspace(0, run_s / 2, ONSETS):
            for constant_s in np.geomspace(run_s / 60, run_s, TIME_CONSTANTS):
                shape = 1 - np.exp(-np.maximum(at_s - onset_s, 0) / constant_s)
                size = float(np.cov(shape, log_s)[0, 1] / np.var(shape, ddof=1))
                level = float(log_s.mean() - size * shape.mean())
                left = float(np.sum((log_s - level - size * shape) ** 2))
                if left < least:
                    best, least = cls(level, size, float(onset_s), float(constant_s)), left
        if best is None or best.rise(run_s) < math.log1p(MIN_EFFECT):
            return None
        parts = np.split(log_s, steps)
        rest = np.concatenate([part - part.mean() for part in parts])
        residual = (
            log_s - best.level - best.size * (1 - np.exp(-np.maximum(at_s - best.onset_s, 0) / best.time_constant_s))
        )
        worth = count / variance_inflation(autocorrelation(residual), count)
        evidence = worth * math.log(max(float(rest @ rest), 1e-12) / max(least, 1e-12))
        return best if evidence - (4 - 2 * len(steps) - 1) * math.log(worth) > MIN_EVIDENCE else None

    def rise(self, at_s: float) -> float:
        """By how much it is above `level`, on the log scale."""
        return self.size * -math.expm1(-max(at_s - self.onset_s, 0.0) / self.time_constant_s)

    def left(self, at_s: float) -> float:
        """How far the end of the curve still is."""
        return self.size - self.rise(at_s)

    def when(self, rise: float) -> float:
        """The time when it is so far above `level`."""
        share = min(max(rise, 0.0) / self.size, 1 - 1e-9)
        return self.onset_s - self.time_constant_s * math.log1p(-share)


def _cut(since_s: FloatArray, length_s: float) -> dict[int, npt.NDArray[np.intp]]:
    """The stretches that have samples, by number: the places of each one's samples."""
    numbers = (since_s // length_s).astype(np.intp)
    begins = np.flatnonzero(np.diff(numbers, prepend=-1))
    return {int(numbers[places[0]]): places for places in np.split(np.arange(since_s.size), begins[1:])}


def _point(samples: SampleSeries, places: npt.NDArray[np.intp]) -> Point:
    median_s = float(np.median(samples.seconds[places]))
    return Point(float(samples.start_s[places[0]]), median_s, median_s, median_s, epoch="")


def _throttling(points: list[Point]) -> Change | None:
    """The first change to a slower level, in the shortest beginning of the run that has one.

    A phone whose clock goes back and forth later has no levels over its whole run, but it did throttle.
    """
    for part in BEGINNINGS:
        slower = [change for change in changes(points[: math.ceil(part * len(points))]) if change.rose]
        if slower:
            return slower[0]
    return None


def _place(log_s: FloatArray, slices: list[npt.NDArray[np.intp]], change: Change) -> int:
    """The sample at which the level changed, of the two slices around it: samples lie nearest to both levels so."""
    near = np.concatenate([slices[change.index - 1], slices[change.index]])
    nearer_before = np.abs(log_s[near] - math.log(change.before)) - np.abs(log_s[near] - math.log(change.after))
    costs = np.concatenate([[0.0], np.cumsum(nearer_before)])
    return int(near[0]) + int(np.argmin(costs[: near.size]))
