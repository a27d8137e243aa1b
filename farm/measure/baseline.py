"""A new result against the results of a baseline: the ratio of their times, with what differs between runs in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from farm.measure.interval import student
from farm.measure.regression import LEAST_SIGMA, Z95, Point

CONFIDENCE = 0.99
FEWEST_RESULTS = 3  # of a baseline; of fewer the scatter between runs is not known
MOST_RESULTS = 20  # the newest ones: older ones say little of the phone as it is


@dataclass(frozen=True, slots=True)
class BaselineRatio:
    """The new result's time over the baseline's: above 1, it is slower."""

    ratio: float
    low: float  # of the interval of 99 %
    high: float
    results: int  # of the baseline


def ratio_to_baseline(baseline: Sequence[Point], new: Point) -> BaselineRatio:
    """The ratio and the interval in which a new result of the same build would lie (a prediction interval).

    Each run of one build has its own level: temperature, where memory lies. The results of the baseline show how much
    levels differ, so the interval is Student's t of their scatter, or of the interval of the new result if that is
    wider. An outlier among the baseline widens it.

    Raises:
        ValueError: the baseline has fewer than `FEWEST_RESULTS` results.
    """
    count = len(baseline)
    if count < FEWEST_RESULTS:
        raise ValueError(f"{count} results are no baseline; {FEWEST_RESULTS} are needed")
    levels = np.log([point.median_s for point in baseline])
    own = (math.log(new.high_s) - math.log(new.low_s)) / 2 / Z95
    scatter = max(float(np.std(levels, ddof=1)), own, LEAST_SIGMA)
    middle = math.log(new.median_s) - float(np.mean(levels))
    half = student(0.5 + CONFIDENCE / 2, count - 1) * scatter * math.sqrt(1 + 1 / count)
    return BaselineRatio(math.exp(middle), math.exp(middle - half), math.exp(middle + half), count)
