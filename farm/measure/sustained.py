"""Speed under a load that does not end: medians per minute, when the phone throttles, the plateau. Pure.

A phone that runs a model for half an hour becomes warm and lowers its clock in steps. `sustained` cuts the run into
short slices, finds the changes of level between them as in a history of results, and moves each to the sample where it
happened. The first change to a slower level is the throttling; what follows the last change is the plateau, if it
lasted long enough to be one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from farm.measure.interval import MedianEstimate, median_interval
from farm.measure.regression import Change, Point, changes
from farm.measure.series import FloatArray, SampleSeries

BUCKET_S = 60.0
SLICES_IN_BUCKET = 6
MIN_SLICES = 60  # a run shorter than ten buckets has shorter slices
BEGINNINGS = (1 / 8, 1 / 4, 1 / 2, 1.0)  # of the run
MIN_PLATEAU = 0.15  # of the run; a level that came later may be on its way to the next


@dataclass(frozen=True, slots=True)
class SpeedBucket:
    """The samples of a stretch of the run, a minute if not said otherwise."""

    start_s: float  # since the first sample
    estimate: MedianEstimate


@dataclass(frozen=True, slots=True)
class SustainedSpeed:
    """What a long run says of a phone."""

    buckets: tuple[SpeedBucket, ...]  # in the order of time; a stretch without samples has none
    fresh: MedianEstimate  # before the throttling; of the whole run where none was found
    throttled_after_s: float | None  # since the first sample; None: no change to a slower level was found
    plateau: (
        MedianEstimate | None
    )  # after the last change; None: the run ended too soon after it, or its speed went back and forth
    plateau_from_s: float | None

    @property
    def slowdown(self) -> float | None:
        """The plateau's median over the fresh one; None without a plateau."""
        return None if self.plateau is None else self.plateau.median_s / self.fresh.median_s


def sustained(samples: SampleSeries, bucket_s: float = BUCKET_S) -> SustainedSpeed:
    """The run's buckets, its time to throttle and its plateau.

    Raises:
        ValueError: `bucket_s` is not above 0.
    """
    if not bucket_s > 0:
        raise ValueError(f"a bucket of {bucket_s:g} s has no samples")
    since_s = samples.start_s - samples.start_s[0]
    run_s = float(since_s[-1] + samples.seconds[-1])
    log_s = np.log(samples.seconds)
    slices = _cut(since_s, min(bucket_s / SLICES_IN_BUCKET, run_s / MIN_SLICES))
    points = [_point(samples, places) for places in slices.values()]
    near = list(slices.values())
    first = _throttling(points)
    last = changes(points)[-1:]
    throttled = None if first is None else _place(log_s, near, first)
    plateau = _place(log_s, near, last[0]) if last else 0 if throttled is None else samples.count
    lasts = plateau < samples.count and run_s - float(since_s[plateau]) >= MIN_PLATEAU * run_s
    return SustainedSpeed(
        buckets=tuple(
            SpeedBucket(number * bucket_s, median_interval(log_s[places]))
            for number, places in _cut(since_s, bucket_s).items()
        ),
        fresh=median_interval(log_s[:throttled]),
        throttled_after_s=None if throttled is None else float(since_s[throttled]),
        plateau=median_interval(log_s[plateau:]) if lasts else None,
        plateau_from_s=float(since_s[plateau]) if lasts else None,
    )


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
        slower = [change for change in changes(points[: math.ceil(part * len(points))]) if change.slower]
        if slower:
            return slower[0]
    return None


def _place(log_s: FloatArray, slices: list[npt.NDArray[np.intp]], change: Change) -> int:
    """The sample at which the level changed, of the two slices around it: samples lie nearest to both levels so."""
    near = np.concatenate([slices[change.index - 1], slices[change.index]])
    nearer_before = np.abs(log_s[near] - math.log(change.before_s)) - np.abs(log_s[near] - math.log(change.after_s))
    costs = np.concatenate([[0.0], np.cumsum(nearer_before)])
    return int(near[0]) + int(np.argmin(costs[: near.size]))
